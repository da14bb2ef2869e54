"""The disk tier's store on this machine: writing behind, reading back, a start, the engine thread's time.

  python -m bench.disk_store [--folder DIR] [--json FILE]

Blocks are of SmolLM2-135M's shape: 30 layers x 3 heads x 64 numbers for keys and for values. What is read
back was just written, so that it comes from the system's page cache: this measures the store, not the disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxserver.kv.block_hash import BLOCK_TOKENS
from mlxserver.kv.disk.store import DiskStore
from mlxserver.kv.identity import BASE_IDENTITY
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.spans import KVSpan

N_TOKENS = 1500
N_PROMPTS = 5
N_FILES = 10_000
MB = 1e6


def span_of(n: int, kind: str, n_layers: int = 30, heads: int = 3, width: int = 64) -> KVSpan:
    parts = [KV_TYPES[kind].encode(mx.random.normal((1, heads, n, width))) for _ in range(2 * n_layers)]
    mx.eval(parts)
    return KVSpan(tuple(zip(parts[::2], parts[1::2], strict=True)))


def tokens_of(i: int, n: int) -> list[int]:
    return [i, *range(1, n)]


def transfer(folder: Path, kind: str) -> dict[str, Any]:
    """Prompts written behind and read back."""
    spans = [span_of(N_TOKENS, kind) for _ in range(N_PROMPTS)]
    store = DiskStore(folder, None, kind, queue_limit=10**12)
    store.flush(10)
    puts, begin = [], time.perf_counter()
    for i, span in enumerate(spans):
        t = time.perf_counter()
        store.put(BASE_IDENTITY, tokens_of(i, N_TOKENS), 0, span)
        puts.append(time.perf_counter() - t)
    store.flush(600)
    t_write = time.perf_counter() - begin
    finds, begin, n_blocks, n_bytes = [], time.perf_counter(), 0, 0
    for i in range(N_PROMPTS):
        t = time.perf_counter()
        match = store.find(BASE_IDENTITY, tokens_of(i, N_TOKENS), cuts=True)
        finds.append(time.perf_counter() - t)
        for ref in match.blocks:
            store.read(ref)
        n_blocks, n_bytes = n_blocks + len(match.blocks), n_bytes + match.nbytes
    t_read = time.perf_counter() - begin
    store.close()
    return {
        "type": kind,
        "KB a block": round(n_bytes / n_blocks / 1000),
        "write MB/s": round(n_bytes / t_write / MB),
        "write ms a block": round(1000 * t_write / n_blocks, 2),
        "read MB/s": round(n_bytes / t_read / MB),
        "read ms a block": round(1000 * t_read / n_blocks, 2),
        "put ms": round(1000 * statistics.median(puts), 3),
        "find ms": round(1000 * statistics.median(finds), 3),
    }


def indexing(folder: Path) -> dict[str, Any]:
    """A start on many small files."""
    store = DiskStore(folder, None, "many", queue_limit=10**12)
    per_prompt = 100
    span = span_of(per_prompt * BLOCK_TOKENS, "f16", 1, 1, 1)
    for i in range(N_FILES // per_prompt):
        store.put(BASE_IDENTITY, tokens_of(i, span.n), 0, span)
    store.flush(600)
    store.close()
    begin = time.perf_counter()
    store = DiskStore(folder, None, "many")
    t_open = time.perf_counter() - begin
    store.flush(600)
    t_ready = time.perf_counter() - begin
    n_blocks = store.stats().blocks
    store.close()
    return {"files": n_blocks, "open ms": round(1000 * t_open, 2), "indexed s": round(t_ready, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to write (default: the system's temporary folder)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for kind in ("f32", "f16", "bf16", "q8_0"):
            results.append(transfer(Path(folder, kind), kind))
            print(results[-1], flush=True)
        results.append(indexing(Path(folder, "many")))
        print(results[-1])
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
