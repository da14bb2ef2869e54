"""Eight streams over four adapters in one batch, beside the same streams grouped by adapter.

    python -m bench.lora -m MODEL.gguf [--rounds 5] [--tokens 48] [--rank 16]

llama-server decodes different sets of adapters in different batches; here that is a second server with
``--max-loras 1``, which takes the groups one after the other. Rounds alternate between the servers and the
same streams without adapters, so that a busy machine slows all alike; the figures are medians of the rounds'
ratios. The adapters are random, of all matrices of the layers.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from bench.contestants import serving
from bench.total_rate import total_rate

STREAMS, ADAPTERS = 8, 4


def write_adapter(base: gguf.GGUFReader, path: Path, rank: int, seed: int) -> None:
    """A random adapter of every matrix of every layer."""
    rng = np.random.default_rng(seed)
    architecture = base.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for tensor in base.tensors:
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2:
            n_in, n_out = map(int, tensor.shape)
            a = rng.standard_normal((rank, n_in)) / n_in**0.5
            b = rng.standard_normal((n_out, rank)) / rank / 10
            writer.add_tensor(f"{tensor.name}.lora_a", a.astype(np.float32))
            writer.add_tensor(f"{tensor.name}.lora_b", b.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rate(url: str, n_predict: int, adapted: bool, pool: ThreadPoolExecutor) -> float:
    """Of all streams; without adapters they ask for scale 0."""
    scale = 1.0 if adapted else 0.0
    bodies: list[dict[str, Any]] = [
        {
            "prompt": f"{number}. Once",
            "temperature": 0,
            "cache_prompt": False,
            "lora": [{"id": number % ADAPTERS, "scale": scale}],
        }
        for number in range(STREAMS)
    ]
    return total_rate(url, bodies, n_predict, pool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rank", type=int, default=16)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    base = gguf.GGUFReader(arguments.model)
    options = ["--lora-init-without-apply"]
    for seed in range(ADAPTERS):
        path = folder / f"{seed}.gguf"
        write_adapter(base, path, arguments.rank, seed)
        options += ["--lora", str(path)]
    with (
        serving("mlxserver", arguments.model, folder, options) as (mixed, _),
        serving("mlxserver", arguments.model, folder, [*options, "--max-loras", "1"]) as (grouped, _),
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        loads = {"mixed": (mixed, True), "grouped": (grouped, True), "base": (mixed, False)}
        for url, adapted in loads.values():
            rate(url, 4, adapted, pool)
        rounds = [
            {name: rate(url, arguments.tokens, adapted, pool) for name, (url, adapted) in loads.items()}
            for _ in range(arguments.rounds)
        ]
    for name in loads:
        print(f"{name}: {statistics.median(r[name] for r in rounds):.1f} tokens/s")
    for other in ("grouped", "base"):
        ratios = sorted(r["mixed"] / r[other] for r in rounds)
        print(f"mixed / {other}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
