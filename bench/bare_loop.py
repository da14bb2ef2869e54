"""The decode loop of mlx with nothing around it: the speed that a server could at most have.

Prints a JSON object: streams -> tokens/s. ``--pipelined`` builds a step while the one before it is computed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache


def decode_rate(model: Any, prompt: list[int], streams: int, n_predict: int, pipelined: bool) -> float:
    """Tokens/s of all streams together; the prompt is not counted."""
    cache = make_prompt_cache(model)
    tokens = next_tokens(model, mx.array([prompt] * streams), cache)
    mx.eval(tokens)
    start = time.perf_counter()
    for _ in range(n_predict):
        following = next_tokens(model, tokens[:, None], cache)
        if pipelined:
            mx.async_eval(following)  # type: ignore[no-untyped-call]
            mx.eval(tokens)
        else:
            mx.eval(following)
        tokens = following
    mx.eval(tokens)
    return streams * n_predict / (time.perf_counter() - start)


def next_tokens(model: Any, tokens: mx.array, cache: Any) -> mx.array:
    return mx.argmax(model(tokens, cache=cache)[:, -1], axis=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="an MLX folder")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--n-predict", type=int, required=True)
    parser.add_argument("--streams", type=int, nargs="+", required=True)
    parser.add_argument("--pipelined", action="store_true")
    args = parser.parse_args()
    model, tokenizer = load(str(args.model))[:2]
    prompt = tokenizer.encode(args.prompt)
    decode_rate(model, prompt, 1, 4, args.pipelined)
    rates = {n: decode_rate(model, prompt, n, args.n_predict, args.pipelined) for n in args.streams}
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
