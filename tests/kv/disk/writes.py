"""A process that stores prompts for as long as it lives: ``python -m tests.kv.disk.writes FOLDER SEED``."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from mlxserver.kv.disk.store import DiskStore
from mlxserver.kv.identity import BASE_IDENTITY
from tests.kv.disk.spans import SPACE, numbers, span_of

LIMIT = 3_000_000
"""About 20 blocks: there is always something to remove."""
N_LAYERS = 4


def main(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = DiskStore(folder, LIMIT, SPACE)
    spans = {i: span_of(numbers(300, i), n_layers=N_LAYERS) for i in range(10)}
    print("ready", flush=True)
    while True:
        i, n = rng.randrange(10), rng.randrange(1, 301)
        tokens = numbers(n, i)
        start = store.missing(BASE_IDENTITY, tokens).start
        store.put(BASE_IDENTITY, tokens, start, spans[i].part(slice(start, n)))
        store.flush(10)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
