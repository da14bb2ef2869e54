"""A server that is killed while it writes leaves a folder that the next one finds in order."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from mlxserver.kv.disk.index import DiskMatch
from mlxserver.kv.identity import BASE_IDENTITY
from tests.kv.disk.spans import equal, numbers, opened, span_of
from tests.kv.disk.writes import LIMIT, N_LAYERS

KILLS = int(os.environ.get("MLXSERVER_TEST_KILLS", "8"))


def test_killed_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(os.environ.get("MLXSERVER_TEST_SEED", "0"))
    n_torn = n_files = 0
    for i in range(KILLS):
        command = [sys.executable, "-m", "tests.kv.disk.writes", str(tmp_path), str(i)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0, 0.3))
            child.kill()
        n_torn += len(list(tmp_path.rglob("*.tmp")))
        n_files += verify(tmp_path, n_kills=i + 1)
    print(f"{KILLS} kills, {n_torn} files torn and cleared, {n_files} files verified")
    assert n_files


def verify(folder: Path, n_kills: int) -> int:
    """Every file is found, in a chain without a hole, and has the state of its tokens.

    A kill may have come between a block and the removal of the tail whose place it takes.
    """
    whole_files = set(folder.rglob("*.safetensors"))
    with opened(folder, limit=LIMIT) as store:
        stats = store.stats()
        paths = set(folder.rglob("*.safetensors"))
        assert not list(folder.rglob("*.tmp")) and stats.failed == stats.removed == 0
        assert stats.blocks == len(paths) and paths == whole_files, "nothing that was written is lost"
        assert stats.nbytes == sum(path.stat().st_size for path in paths) <= LIMIT
        seen = set()
        for i in range(10):
            whole = span_of(numbers(300, i), n_layers=N_LAYERS)
            match: DiskMatch = store.find(BASE_IDENTITY, numbers(300, i), cuts=True)
            for ref in match.blocks:
                assert equal(store.read(ref).span, whole.part(slice(ref.start, ref.end)))
                seen.add(ref.key)
        assert stats.blocks - n_kills <= len(seen) <= stats.blocks
    return len(paths)
