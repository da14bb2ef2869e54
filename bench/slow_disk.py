"""mlxserver on a disk that takes so many seconds more for each file that is read.

python -m bench.slow_disk SECONDS [mlxserver's arguments]
"""

from __future__ import annotations

import sys
import time

from mlxserver.__main__ import main
from mlxserver.kv.disk.index import DiskRef
from mlxserver.kv.disk.store import DiskStore, StoredBlock


def slow_down(seconds: float) -> None:
    read = DiskStore.read

    def slowly(self: DiskStore, ref: DiskRef) -> StoredBlock:
        time.sleep(seconds)
        return read(self, ref)

    DiskStore.read = slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_down(float(sys.argv.pop(1)))
    sys.exit(main())
