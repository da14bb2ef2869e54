"""What a template may spend on one rendering: turns, seconds and characters.

A model's file brings its template, so it is somebody else's program. jinja2's sandbox keeps it from all that
is outside; this keeps it from taking the server's time and memory.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from mlxserver.chat.errors import TemplateError

MAX_TURNS = 2_000_000
"""Turns of loops, calls, and values that are written out."""
MAX_SECONDS = 10.0
MAX_CHARACTERS = 64 * 1024 * 1024
"""Of everything that is written and joined; many times the longest prompt."""
MAX_NUMBER = 2**64
MAX_WIDTH = 10_000
"""Columns of a padded value, and pieces that a list is cut into."""

SAFE_METHODS = frozenset(
    "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit islower "
    "isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind "
    "rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper".split()
)
"""Methods of strings that make nothing much longer than it was, or are checked."""

_WIDTH = re.compile(r"\d+")


class Budget:
    """What a rendering may still spend."""

    def __init__(self) -> None:
        self.turns = MAX_TURNS
        self.characters = MAX_CHARACTERS
        self.deadline = time.monotonic() + MAX_SECONDS

    def spend(self, characters: int = 0) -> None:
        self.turns -= 1
        self.characters -= characters
        if self.turns < 0 or (self.turns % 1024 == 0 and time.monotonic() > self.deadline):
            raise TemplateError("the chat template runs for too long")
        if self.characters < 0:
            raise TemplateError("the chat template makes too long a string")


_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def budgeted() -> Iterator[None]:
    """Everything within is one rendering."""
    token = _budget.set(Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def spend(characters: int = 0) -> None:
    budget = _budget.get()
    if budget is not None:
        budget.spend(characters)


def metered(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        spend()
        yield item


def check_value(value: Any) -> Any:
    """Spends what writing ``value`` out takes, were it written with all that is in it."""
    if isinstance(value, str):
        spend(len(value))
    elif isinstance(value, dict):
        for key, item in value.items():
            check_value(key)
            check_value(item)
    elif isinstance(value, list | tuple):
        for item in value:
            check_value(item)
    else:
        spend(16)
    return value


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Of ``left OPERATOR right``."""
    if operator == "*":
        _check_product(left, right)
    elif operator == "+":
        spend(_length(left) + _length(right))
    elif operator == "%" and isinstance(left, str):
        check_format(left, right)


def check_format(text: str, *values: Any) -> None:
    """Of Python's two ways to fill values into a text: no wide columns, none that a value says."""
    if "*" in text or re.search(r"\{[^{}]*\{", text) or any(_is_wide(w) for w in _WIDTH.findall(text)):
        raise TemplateError("the chat template formats a value too widely")
    check_value([text, *values])


def check_replacement(text: str, old: str, new: str) -> None:
    spend(len(text) + text.count(old) * max(0, len(new) - len(old)))


def check_joined(separator: Any, items: Iterable[Any]) -> list[Any]:
    """The items, if they may be joined."""
    kept = list(metered(items))
    spend(len(str(separator)) * len(kept))
    check_value(kept)
    return kept


def check_width(width: Any) -> None:
    if isinstance(width, int) and width > MAX_WIDTH or isinstance(width, str) and len(width) > MAX_WIDTH:
        raise TemplateError("the chat template asks for too much")


def narrow(function: Callable[..., Any], at: int, name: str) -> Callable[..., Any]:
    """A filter whose argument ``name``, the one at ``at``, is a width."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        check_width(kwargs.get(name, args[at] if len(args) > at else 0))
        return function(*args, **kwargs)

    return checked


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if abs(left) >= MAX_NUMBER or abs(right) >= MAX_NUMBER:
            raise TemplateError("the chat template multiplies too large numbers")
        return
    for items, count in ((left, right), (right, left)):
        if isinstance(count, int):
            spend(_length(items) * max(count, 0))


def _length(value: Any) -> int:
    """In characters."""
    return len(value) if isinstance(value, str) else 8 * len(value) if isinstance(value, list | tuple) else 0


def _is_wide(digits: str) -> bool:
    return len(digits) > 4
