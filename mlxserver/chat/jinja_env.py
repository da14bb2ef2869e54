"""The sandbox that chat templates run in, made to agree with llama.cpp's own jinja engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from typing import Any, cast

from jinja2 import ChainableUndefined, Template, nodes, pass_eval_context
from jinja2 import TemplateError as JinjaError
from jinja2.ext import Extension
from jinja2.filters import do_join
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import SandboxedEnvironment

from mlxserver.chat import template_bounds as bounds
from mlxserver.chat.errors import TemplateError

UNKNOWN_FILTERS = ("center", "filesizeformat", "pprint", "random", "urlize", "wordwrap", "xmlattr")
"""Of jinja2 and not of llama.cpp; some of them make long texts of short ones."""

LAZY_FILTERS = ("map", "select", "selectattr", "reject", "rejectattr", "unique", "batch", "slice")
"""Their results are lists in llama.cpp, which can be read twice and turned into JSON."""


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

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=_Missing,
            finalize=_shown,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        self.filters["tojson"] = to_json
        self.filters["metered"] = bounds.metered
        self.filters["concatenated"] = _concatenated
        self.filters["safe"] = self.filters["string"] = _text
        self.filters["replace"] = _replaced
        self.filters["join"] = _joined_items
        self.filters["format"] = _formatted
        self.filters["indent"] = bounds.narrow(self.filters["indent"], 1, "width")
        self.filters["batch"] = bounds.narrow(self.filters["batch"], 1, "linecount")
        self.filters["slice"] = bounds.narrow(self.filters["slice"], 1, "slices")
        self.filters |= {name: _listing(self.filters[name]) for name in LAZY_FILTERS}
        for name in UNKNOWN_FILTERS:
            self.filters.pop(name)
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = _filtered(loop.iter, "metered")
        for concat in source.find_all(nodes.Concat):
            listed = nodes.List(concat.nodes, lineno=concat.lineno)
            concat.nodes = [_filtered(listed, "concatenated")]
        return super()._generate(source, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in bounds.SAFE_METHODS
        return not isinstance(obj, int | float | bytes) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            bounds.check_format(str(value.__self__), *args, *kwargs.values())
            return wrapped(*args, **kwargs)

        return checked

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        bounds.spend()
        of = getattr(__obj, "__self__", None)
        if isinstance(of, str):
            args = _checked_call(of, __obj.__name__, args)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) != isinstance(right, str):
            return _joined(left, right)
        if operator == "**":
            raise TemplateError("powers are not supported in chat templates")
        bounds.check_operation(operator, left, right)
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
    try:
        with bounds.budgeted():
            return "".join(template.generate(context))
    except TemplateError:
        raise
    except (JinjaError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise TemplateError(f"{error}") from error
    except (RecursionError, MemoryError) as error:
        raise TemplateError("the chat template needs too much memory or recursion") from error


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Python writes it; unlike jinja2's own filter, HTML's characters stay themselves."""
    bounds.check_width(indent)
    bounds.check_value(value)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _listing(lazy: Callable[..., Iterable[Any]]) -> Callable[..., list[Any]]:
    @wraps(lazy)
    def listed(*args: Any, **kwargs: Any) -> list[Any]:
        return list(lazy(*args, **kwargs))

    return listed


def _filtered(node: nodes.Node, name: str) -> nodes.Expr:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


def _checked_call(text: str, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call of a string's method, which makes nothing too long."""
    if method == "replace" and len(args) > 1:
        bounds.check_replacement(text, str(args[0]), str(args[1]))
    if method == "join" and args:
        return bounds.check_joined(text, args[0]), *args[1:]
    return args


def _replaced(value: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(bounds.check_value(value))
    bounds.check_replacement(text, old, new)
    return text.replace(old, new, -1 if count is None else count)


def _formatted(value: str, *args: Any, **kwargs: Any) -> str:
    bounds.check_format(value, *args, *kwargs.values())
    return str(value) % (kwargs or args)


@pass_eval_context
def _joined_items(eval_context: Any, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    return str(do_join(eval_context, bounds.check_joined(d, value), d, attribute))


def _concatenated(values: list[Any]) -> str:
    return "".join(str(_joinable(bounds.check_value(value))) for value in values)


def _text(value: Any) -> str:
    return str(bounds.check_value(value))


def _joined(left: Any, right: Any) -> str:
    return _concatenated([left, right])


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
        return "".join(str(_shown(item)) for item in bounds.metered(value))
    if isinstance(value, str):
        bounds.spend(len(value))
    return "" if isinstance(value, dict) else _joinable(value)


def _raise_exception(message: str) -> None:
    raise TemplateError(f"Jinja Exception: {message}")


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
