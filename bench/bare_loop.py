"""The decode loop of mlx with nothing around it: the speed that a server could at most have.

Prints a JSON object: streams -> tokens/s.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

Step = Callable[[mx.array], mx.array]
"""The last token of each stream -> the next one, not evaluated."""
WARM_UP = 4


class FixedCache:
    """Keys and values of one layer in arrays of one shape, so that one compiled graph serves every step."""

    def __init__(self, keys: mx.array, values: mx.array, offset: mx.array) -> None:
        self.keys, self.values, self.offset = keys, values, offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys = mx.slice_update(self.keys, keys, self.offset, axes=(2,))
        self.values = mx.slice_update(self.values, values, self.offset, axes=(2,))
        return self.keys, self.values

    def make_mask(self, *_: Any, **__: Any) -> mx.array:
        return mx.arange(self.keys.shape[2]) <= self.offset


def eager(model: Any, cache: list[Any], n_predict: int) -> Step:
    return lambda tokens: next_tokens(model, tokens[:, None], cache)


def compiled(model: Any, cache: list[Any], n_predict: int) -> Step:
    """The whole step as one graph, as long as the longest sequence will be."""
    n = cache[0].offset
    room = [(0, 0), (0, 0), (0, n_predict), (0, 0)]
    state = [tuple(mx.pad(a[:, :, :n], room) for a in (layer.keys, layer.values)) for layer in cache]
    offset = mx.array(n)

    @mx.compile
    def run(tokens: mx.array, offset: mx.array, state: Any) -> Any:
        layers = [FixedCache(keys, values, offset) for keys, values in state]
        following = next_tokens(model, tokens[:, None], layers)
        return following, offset + 1, [(layer.keys, layer.values) for layer in layers]

    def step(tokens: mx.array) -> mx.array:
        nonlocal offset, state
        following, offset, state = run(tokens, offset, state)
        return following  # type: ignore[no-any-return]

    return step


def next_tokens(model: Any, tokens: mx.array, cache: Any) -> mx.array:
    return mx.argmax(model(tokens, cache=cache)[:, -1], axis=-1)


LOOPS = {"eager": (eager, False), "pipelined": (eager, True), "compiled": (compiled, True)}
"""How a step is made, and whether it is built while the one before it is computed."""


def decode_rate(model: Any, prompt: list[int], streams: int, n_predict: int, loop: str) -> float:
    """Tokens/s of all streams together; neither the prompt nor the first few steps are counted."""
    make, pipelined = LOOPS[loop]
    cache = make_prompt_cache(model)
    tokens = next_tokens(model, mx.array([prompt] * streams), cache)
    mx.eval(tokens)
    step = make(model, cache, n_predict + WARM_UP)
    start = 0.0
    for i in range(-WARM_UP, n_predict):
        if i == 0:
            mx.eval(tokens)
            start = time.perf_counter()
        following = step(tokens)
        if pipelined:
            mx.async_eval(following)  # type: ignore[no-untyped-call]
            mx.eval(tokens)
        else:
            mx.eval(following)
        tokens = following
    mx.eval(tokens)
    return streams * n_predict / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="an MLX folder")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--n-predict", type=int, required=True)
    parser.add_argument("--streams", type=int, nargs="+", required=True)
    parser.add_argument("--loop", choices=LOOPS, default="eager")
    args = parser.parse_args()
    model, tokenizer = load(str(args.model))[:2]
    prompt = tokenizer.encode(args.prompt)
    print(json.dumps({n: decode_rate(model, prompt, n, args.n_predict, args.loop) for n in args.streams}))


if __name__ == "__main__":
    main()
