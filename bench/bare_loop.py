"""The decode loop of mlx with nothing around it: the speed that a server could at most have.

Prints a JSON object: streams -> tokens/s.
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


def decode_rate(model: Any, prompt: list[int], streams: int, n_predict: int) -> float:
    """Tokens/s of all streams together; the prompt is not counted."""
    cache = make_prompt_cache(model)
    y = next_tokens(model, mx.array([prompt] * streams), cache)
    start = time.perf_counter()
    for _ in range(n_predict):
        y = next_tokens(model, y[:, None], cache)
    return streams * n_predict / (time.perf_counter() - start)


def next_tokens(model: Any, tokens: mx.array, cache: Any) -> mx.array:
    y = mx.argmax(model(tokens, cache=cache)[:, -1], axis=-1)
    mx.eval(y)
    return y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="an MLX folder")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--n-predict", type=int, required=True)
    parser.add_argument("--streams", type=int, nargs="+", required=True)
    args = parser.parse_args()
    model, tokenizer = load(str(args.model))[:2]
    prompt = tokenizer.encode(args.prompt)
    decode_rate(model, prompt, 1, 4)
    print(json.dumps({n: decode_rate(model, prompt, n, args.n_predict) for n in args.streams}))


if __name__ == "__main__":
    main()
