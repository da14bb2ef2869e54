"""The options of one run, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mlxserver.options.builder import Builder
from mlxserver.options.environment import parse_environment
from mlxserver.options.exits import Exit
from mlxserver.options.finish import finish
from mlxserver.options.help import completion_text, help_text
from mlxserver.options.inifile import parse_config_files
from mlxserver.options.notices import Notice
from mlxserver.options.parse import parse_argv
from mlxserver.options.states import hints, refusals
from mlxserver.options.surroundings import environment_hints, environment_refusals


class Options:
    """Typed values by option name: ``options.ctx_size``. Never changes.

    A name is the first long spelling with ``_`` for ``-`` (``--predict`` is ``n_predict``). Floats hold
    what C's 32-bit float holds; lists are tuples; options that read a file hold its text.
    """

    __slots__ = ("_values", "_given", "notices")

    _values: Mapping[str, Any]
    _given: frozenset[str]
    notices: tuple[Notice, ...]

    def __init__(self, builder: Builder) -> None:
        object.__setattr__(self, "_values", MappingProxyType(builder.values))
        object.__setattr__(self, "_given", frozenset(builder.given))
        object.__setattr__(self, "notices", tuple(builder.notices))

    def __getattr__(self, name: str) -> Any:
        if name in Options.__slots__ or name not in self._values:
            raise AttributeError(f"no option {name!r}")
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("options never change")

    def given(self, name: str) -> bool:
        """Whether the option itself was used, in a file, the environment or the command line."""
        return name in self._given

    @property
    def has_model(self) -> bool:
        """Without a source of a model llama-server would be a router."""
        return bool(self.model or self.hf_repo or self.docker_repo)


def parse_command_line(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Reads config files, ``environ`` and ``argv`` (without the program's name), each over the former.

    Raises ``Exit`` for ``--help`` and its like, for errors, and for options that this version refuses.
    """
    builder = Builder()
    parse_config_files(builder, environ)
    parse_environment(builder, environ)
    parse_argv(builder, argv, environ)
    finish(builder)
    _exit_with_text(builder)
    _refuse(builder, environ)
    for line in (*hints(builder), *environment_hints(environ)):
        builder.notices.warning(line)
    return Options(builder)


def require_model(options: Options) -> None:
    """Raises ``Exit`` where no model is named."""
    if not options.has_model:
        text = "not yet implemented: serving without a model; name one by --model or --hf-repo"
        raise Exit(1, stderr=f"error: {text}\n")


def _exit_with_text(builder: Builder) -> None:
    """These wait until everything was read without an error."""
    for name, text in (("help", help_text), ("completion_bash", completion_text)):
        if builder.values[name]:
            raise Exit(0, stdout=text(), stderr=builder.notices.lines())


def _refuse(builder: Builder, environ: Mapping[str, str]) -> None:
    lines = [f"error: {line}\n" for line in (*refusals(builder), *environment_refusals(environ))]
    if lines:
        raise Exit(1, stderr=builder.notices.lines() + "".join(lines))
