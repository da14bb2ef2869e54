"""The command: options, then log, then the server; ``validate`` as its first word is another command."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from mlxserver.options import Exit, Options, parse_command_line, require_model
from mlxserver.telemetry import log

LEAST_FREE = 64 * 2**20
"""Bytes that must be free for a ``--cache-disk`` that holds nothing yet."""


def main() -> int:
    """Runs the server, or what the first word names; the process's exit code."""
    if sys.argv[1:2] == ["validate"]:
        from mlxserver.validate.command import main as validate

        return validate(sys.argv[2:])
    try:
        options = parse_command_line(sys.argv[1:], os.environ)
        require_model(options)
        check_template(options)
        check_grammar(options)
        check_cache_disk(options)
    except Exit as end:
        sys.stdout.write(end.stdout)
        sys.stderr.write(end.stderr)
        return end.code
    log.configure(options)
    from mlxserver.serving import serve

    return serve(options)


def check_template(options: Options) -> None:
    """Raises ``Exit`` for a ``--chat-template`` that cannot render a message."""
    if not options.chat_template:
        return
    from mlxserver.chat.errors import ChatError
    from mlxserver.chat.messages import Message
    from mlxserver.chat.template import Chat, make_template

    try:
        make_template(options.chat_template, options.jinja).render(Chat((Message("user", "test"),)))
    except ChatError as error:
        text = f"error: the supplied chat template is not supported: {options.chat_template}\n{error}\n"
        raise Exit(1, stderr=text) from None


def check_grammar(options: Options) -> None:
    """Raises ``Exit`` for a ``--grammar`` or ``--json-schema`` that no request could follow."""
    if not options.grammar and options.json_schema is None:
        return
    from mlxserver.sampling.grammar.compiler import check_without_tokens
    from mlxserver.sampling.grammar.nodes import GrammarError

    try:
        check_without_tokens(options.grammar, options.json_schema)
    except GrammarError as error:
        name = "grammar" if options.grammar else "JSON schema"
        raise Exit(1, stderr=f"error: the supplied {name} cannot be used: {error}\n") from None


def check_cache_disk(options: Options) -> None:
    """Raises ``Exit`` for a ``--cache-disk`` that cannot keep anything."""
    if not options.cache_disk:
        return
    from mlxserver.kv.disk.entry import DiskError
    from mlxserver.kv.disk.folder import Folder

    try:
        if options.cache_ram == 0:
            raise DiskError("it needs --cache-ram: what is read goes there")
        path = Path(options.cache_disk)
        Folder(path).close()
        free = shutil.disk_usage(path).free
        # what is there may be what fills the disk, and is still of use
        if free < LEAST_FREE and not any(each.is_dir() for each in path.iterdir()):
            raise DiskError(f"there is no room in {options.cache_disk} ({free >> 20} MiB are free)")
    except (DiskError, ValueError) as error:
        raise Exit(1, stderr=f"error: --cache-disk cannot be used: {error}\n") from None


if __name__ == "__main__":
    sys.exit(main())
