"""Whether a model calls a layer so that adapters can follow, found by watching it evaluate a few tokens.

A layer whose weights are read past its call, or whose input has no rows of the batch, gives no place to put a
product beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import mlx.core as mx

from mlxserver.models.lora.adapter import AdapterError
from mlxserver.models.lora.targets import Target

BATCH, LENGTH = 5, 7
"""Numbers that no other axis of an input is likely to have by chance."""
_PARAMETERS = ("weight", "scales", "biases", "bias")


@dataclass(slots=True)
class _Watched:
    inputs: list[int] = field(default_factory=list)
    """The length of the first axis of each call's input."""
    depth: int = 0
    is_read: bool = False


class _Watching:
    base_class: ClassVar[Any]
    watched: _Watched

    def __call__(self, x: mx.array, *args: Any, **named: Any) -> Any:
        return self._noting(self.base_class.__call__, x, *args, **named)

    def as_linear(self, x: mx.array) -> Any:
        return self._noting(self.base_class.as_linear, x)

    def _noting(self, call: Any, x: mx.array, *args: Any, **named: Any) -> Any:
        watched = self.watched
        watched.inputs.append(x.shape[0])
        watched.depth += 1
        try:
            return call(self, x, *args, **named)
        finally:
            watched.depth -= 1

    def __getitem__(self, key: str) -> Any:
        self._reading(key)
        return self.base_class.__getitem__(self, key)

    def __getattr__(self, key: str) -> Any:
        self._reading(key)
        return self.base_class.__getattr__(self, key)

    def _reading(self, key: str) -> None:
        if key in _PARAMETERS and not self.watched.depth:
            self.watched.is_read = True


@cache
def _watching(base: Any) -> Any:
    return type(f"Watched{base.__name__}", (_Watching, base), {"base_class": base})


def check_calls(module: Any, targets: Mapping[str, Target]) -> None:
    """``targets`` by their paths, none of which has an adapter yet. Raises AdapterError by the first name."""
    notes = {path: _Watched() for path in targets}
    # an expert layer's input may be sorted by expert: its block's input has the rows
    blocks = {id(target.block): (target.block, _Watched()) for target in targets.values() if target.n_experts}
    layers = [(target.layer, notes[path]) for path, target in targets.items()]
    for path, target in targets.items():
        if target.n_experts and target.block is None:
            raise _no_place(path)
    with _watch([*layers, *blocks.values()]):
        for n_tokens in _told(_passes(module)):
            for path, target in targets.items():
                note = notes[path]
                inputs = blocks[id(target.block)][1].inputs if target.n_experts else note.inputs
                if not note.inputs or note.is_read or not {*inputs} <= {BATCH, n_tokens}:
                    raise _no_place(path)
            for _, note in (*layers, *blocks.values()):
                note.inputs.clear()


def _no_place(path: str) -> AdapterError:
    return AdapterError(f"{path} is no layer that an adapter can be put beside in this model")


def _told(passes: Iterator[int]) -> Iterator[int]:
    """With whatever the model raises as an AdapterError: a model that knows no batches serves on without."""
    try:
        yield from passes
    except Exception as error:
        raise AdapterError(f"the model cannot be watched with adapters: {str(error)[:200]}") from error


def _passes(module: Any) -> Iterator[int]:
    """A prompt and two steps after it; yields the number of tokens of each pass after it.

    Only their graphs are built: nothing is computed.
    """
    prompt = mx.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % 3
    if hasattr(module, "hidden"):
        module.hidden(prompt, mx.full(BATCH, LENGTH))
        yield prompt.size
        return
    from mlx_lm.models.cache import make_prompt_cache

    caches = make_prompt_cache(module)
    for tokens in (prompt, prompt[:, :1], prompt[:, :1]):
        module(tokens, cache=caches)
        yield tokens.size


@contextmanager
def _watch(layers: list[tuple[Any, _Watched]]) -> Iterator[None]:
    for layer, note in layers:
        layer.watched = note
        base: Any = type(layer)
        layer.__class__ = _watching(base)
    try:
        yield
    finally:
        for layer, _ in layers:
            layer.__class__ = layer.base_class
            del layer.watched
