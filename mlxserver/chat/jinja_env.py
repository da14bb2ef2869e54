"""The sandbox that chat templates run in, made to agree with llama.cpp's own jinja engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any, cast

from jinja2 import ChainableUndefined, Template, nodes
from jinja2 import TemplateError as JinjaError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import SandboxedEnvironment

from mlxserver.chat.errors import TemplateError

MAX_ITERATIONS = 2_000_000
MAX_SECONDS = 10.0
MAX_REPEATED = 16 * 1024 * 1024
"""Limits of one rendering: loop turns, seconds, and characters that ``*`` may make of a string."""


LAZY_FILTERS = ("map", "select", "selectattr", "reject", "rejectattr", "unique", "batch", "slice")
"""Their results are lists in llama.cpp, which can be read twice and turned into JSON."""


class _Budget:
    """What a rendering may still spend."""

    def __init__(self) -> None:
        self.turns = MAX_ITERATIONS
        self.deadline = time.monotonic() + MAX_SECONDS

    def spend(self) -> None:
        self.turns -= 1
        if self.turns < 0 or (self.turns % 1024 == 0 and time.monotonic() > self.deadline):
            raise TemplateError("the chat template runs for too long")


_budget: ContextVar[_Budget | None] = ContextVar("budget", default=None)


class _Missing(ChainableUndefined):
    """Undefined values join strings as empty ones, as they do in llama.cpp."""

    def __add__(self, other: object) -> Any:
        return other if isinstance(other, str) else super().__add__(other)

    def __radd__(self, other: object) -> Any:
        return other if isinstance(other, str) else super().__radd__(other)


class _GenerationTag(Extension):
    """``{% generation %}`` marks what a model wrote, for training; here it only shows its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(SandboxedEnvironment):
    """Cuts off templates that run away, and joins strings with anything as llama.cpp does.

    Some templates change lists and objects, so these may be changed: pass copies.
    """

    intercepted_binops = frozenset(["+", "*", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=_Missing,
            finalize=_shown,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        self.filters["tojson"] = to_json
        self.filters["metered"] = _metered
        self.filters["safe"] = str
        self.filters |= {name: _listing(self.filters[name]) for name in LAZY_FILTERS}
        self.filters["joinable"] = _joinable
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = _filtered(loop.iter, "metered")
        for concat in source.find_all(nodes.Concat):
            concat.nodes = [_filtered(node, "joinable") for node in concat.nodes]
        return super()._generate(source, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) != isinstance(right, str):
            return _joined(left, right)
        if operator == "*" and isinstance(left, str) != isinstance(right, str):
            _check_repeat(left, right)
        if operator == "**":
            raise TemplateError("powers are not supported in chat templates")
        return super().call_binop(context, operator, left, right)


def compile_template(environment: TemplateEnvironment, source: str) -> Template:
    """Raises ``TemplateError`` with the parser's text and line."""
    try:
        return environment.from_string(source)
    except JinjaError as error:
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        raise TemplateError(f"cannot parse the chat template{where}: {error}") from error


def render(template: Template, context: dict[str, Any]) -> str:
    """Raises ``TemplateError`` for whatever goes wrong inside the template."""
    token = _budget.set(_Budget())
    try:
        return template.render(context)
    except TemplateError:
        raise
    except (JinjaError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise TemplateError(f"{error}") from error
    except (RecursionError, MemoryError) as error:
        raise TemplateError("the chat template needs too much memory or recursion") from error
    finally:
        _budget.reset(token)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Python writes it; unlike jinja2's own filter, HTML's characters stay themselves."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _listing(lazy: Callable[..., Iterable[Any]]) -> Callable[..., list[Any]]:
    @wraps(lazy)
    def listed(*args: Any, **kwargs: Any) -> list[Any]:
        return list(lazy(*args, **kwargs))

    return listed


def _metered(items: Iterable[Any]) -> Iterator[Any]:
    budget = _budget.get()
    for item in items:
        if budget:
            budget.spend()
        yield item


def _filtered(node: nodes.Node, name: str) -> nodes.Expr:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


def _joined(left: Any, right: Any) -> str:
    return f"{_joinable(left)}{_joinable(right)}"


def _joinable(value: Any) -> Any:
    """Nothing joins as an empty string, and numbers have six decimals at most."""
    if value is None or isinstance(value, Undefined):
        return ""
    if isinstance(value, float):
        return f"{value:f}".rstrip("0") + ("0" if value.is_integer() else "")
    return value


def _shown(value: Any) -> Any:
    """What ``{{ value }}`` leaves in the text: a list shows its items, an object nothing."""
    if isinstance(value, list | tuple):
        return "".join(str(_shown(item)) for item in value)
    return "" if isinstance(value, dict) else _joinable(value)


def _check_repeat(left: Any, right: Any) -> None:
    text, count = (left, right) if isinstance(left, str) else (right, left)
    if isinstance(count, int) and len(text) * count > MAX_REPEATED:
        raise TemplateError("the chat template makes too long a string")


def _raise_exception(message: str) -> None:
    raise TemplateError(f"Jinja Exception: {message}")


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
