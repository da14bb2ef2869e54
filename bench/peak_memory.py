"""Runs a module as ``python -m`` would and keeps a note of the most bytes that MLX's arrays took.

python -m bench.peak_memory FILE MODULE ARGUMENTS...
"""

from __future__ import annotations

import runpy
import sys
import threading
import time
from pathlib import Path

import mlx.core as mx

SECONDS = 0.2


def keep_note(file: Path) -> None:
    new = file.with_suffix(".new")
    while True:
        new.write_text(str(mx.get_peak_memory()))
        new.replace(file)
        time.sleep(SECONDS)


def main() -> None:
    file, module, *arguments = sys.argv[1:]
    threading.Thread(target=keep_note, args=(Path(file),), daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
