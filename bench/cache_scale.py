"""The prefix trie against mlx-lm's LRUPromptCache in one run: time to look up and insert, bytes held.

  python -m bench.cache_scale [--json FILE]

Prompts are of 64 tokens in families of 10 that share 32; then 32 branches of one 1,000-token prefix.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, LRUPromptCache

from mlxserver.kv.identity import BASE_IDENTITY
from mlxserver.kv.spans import KVSpan
from mlxserver.kv.trie import PrefixTrie

HEADS, WIDTH = 1, 4
"""As small as may be: this measures the books, not the copying."""
TOKEN_BYTES = 2 * HEADS * WIDTH * 4


class Trie:
    name = "mlxserver trie"

    def __init__(self) -> None:
        self.trie = PrefixTrie(None)

    def insert(self, tokens: list[int]) -> None:
        self.trie.insert(BASE_IDENTITY, tokens, lambda n: n * TOKEN_BYTES, span)

    def lookup(self, tokens: list[int]) -> int:
        return self.trie.match(BASE_IDENTITY, tokens).n

    @property
    def nbytes(self) -> int:
        return self.trie.nbytes


class Lru:
    name = "mlx-lm LRUPromptCache"

    def __init__(self) -> None:
        self.cache = LRUPromptCache(max_size=10**9)

    def insert(self, tokens: list[int]) -> None:
        cache = KVCache()
        cache.keys, cache.values = arrays(len(tokens))
        cache.offset = len(tokens)
        self.cache.insert_cache("model", list(tokens), [cache])

    def lookup(self, tokens: list[int]) -> int:
        cache, rest = self.cache.fetch_nearest_cache("model", list(tokens))
        return len(tokens) - len(rest) if cache else 0

    @property
    def nbytes(self) -> int:
        return int(self.cache.nbytes)


def span(start: int, end: int) -> KVSpan:
    keys, values = arrays(end - start)
    return KVSpan((((keys,), (values,)),))


def arrays(n: int) -> tuple[mx.array, mx.array]:
    pair = mx.zeros((1, HEADS, n, WIDTH)), mx.zeros((1, HEADS, n, WIDTH))
    mx.eval(pair)
    return pair


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(1)
    families = [[rng.randrange(50_000) for _ in range(32)] for _ in range(-(-count // 10))]
    return [families[i // 10] + [rng.randrange(50_000) for _ in range(32)] for i in range(count)]


def timed(work: Callable[[], Any], repeats: int) -> float:
    """Microseconds of one call, the best of three rounds."""
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(repeats):
            work()
        best = min(best, (time.perf_counter() - begin) / repeats)
    return best * 1e6


def scale(make: Callable[[], Any], count: int) -> dict[str, Any]:
    store, stored = make(), prompts(count)
    begin = time.perf_counter()
    for tokens in stored:
        store.insert(tokens)
    insert = (time.perf_counter() - begin) / count * 1e6
    hit, miss = stored[count // 2][:48] + [1] * 16, [60_000] * 64
    return {
        "prompts": count,
        "insert_us": insert,
        "lookup_hit_us": timed(lambda: store.lookup(hit), 200),
        "lookup_miss_us": timed(lambda: store.lookup(miss), 200),
        "bytes_per_prompt": store.nbytes / count,
    }


def branches(make: Callable[[], Any]) -> int:
    store = make()
    prefix = list(range(1000))
    for i in range(32):
        store.insert([*prefix, 5000 + i, 1, 2])
    return int(store.nbytes)


def long_lookup(make: Callable[[], Any], n: int) -> float:
    """Milliseconds to look up a prompt of ``n`` tokens that parts from a stored one at its middle."""
    store = make()
    stored = [i % 50_000 for i in range(n)]
    store.insert(stored)
    return timed(lambda: store.lookup(stored[: n // 2] + [60_000] * (n // 2)), 3) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report: dict[str, Any] = {}
    for make in (Trie, Lru):
        rows = [scale(make, count) for count in (10, 1_000, 100_000)]
        report[make.name] = {
            "scale": rows,
            "bytes_of_32_branches": branches(make),
            "long_lookup_ms": {n: long_lookup(make, n) for n in (1_000, 10_000, 50_000)},
        }
        print(make.name)
        for row in rows:
            print("  " + "  ".join(f"{key} {value:,.1f}" for key, value in row.items()))
        print(f"  32 branches of 1,000 tokens hold {report[make.name]['bytes_of_32_branches']:,} bytes")
        for n, milliseconds in report[make.name]["long_lookup_ms"].items():
            print(f"  a lookup of {n:,} tokens takes {milliseconds:.2f} ms")
    print(f"one token is {TOKEN_BYTES} bytes; the shared prefix once is {1000 * TOKEN_BYTES:,} bytes")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
