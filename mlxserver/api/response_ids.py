"""How answers name themselves and the build they come from."""

from __future__ import annotations

import secrets
import string

from mlxserver import __version__
from mlxserver.options.table import COMPATIBLE_BUILD

BUILD_INFO = f"b{COMPATIBLE_BUILD}-mlxserver.{__version__}"
"""llama-server's form, build and commit; what responses call ``system_fingerprint``."""

_LETTERS = string.digits + string.ascii_letters


def random_id() -> str:
    """32 letters and digits."""
    return "".join([_LETTERS[byte % len(_LETTERS)] for byte in secrets.token_bytes(32)])


def completion_id() -> str:
    return f"chatcmpl-{random_id()}"
