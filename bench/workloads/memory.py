"""The most memory that eight full slots take, over what the weights and their keys and values must take."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from bench.client import completion, together
from bench.texts import ENDLESS, prose
from bench.workload import Figures, Play

N_STREAMS, N_SLOT, N_PREDICT = 8, 1000, 16
FLOAT_BYTES = 4


def memory(play: Play) -> Figures:
    n_slot = play.size(N_SLOT)
    prompts = [prose(n_slot - N_PREDICT, play.seed(i)) for i in range(N_STREAMS)]
    played = together(play.url, [completion(prompt, N_PREDICT, **ENDLESS) for prompt in prompts])
    n_tokens = sum(s.n_prompt + s.n_tokens for s in played)
    config = json.loads((play.weights.folder / "config.json").read_text())
    needed = play.weights.nbytes + n_tokens * token_bytes(config)
    found = {
        "most of the process": peak_resident(play.server.pid),
        "most of MLX's arrays": peak_arrays(play.peak),
    }
    return {f"{name} / weights + keys + values": n / needed for name, n in found.items() if n is not None}


def token_bytes(config: dict[str, Any]) -> int:
    """Of one token's keys and values in all layers."""
    heads: int = config["num_key_value_heads"] * config["head_dim"]
    return 2 * int(config["num_hidden_layers"]) * heads * FLOAT_BYTES


def peak_resident(pid: int) -> int | None:
    """Linux only."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def peak_arrays(file: Path) -> int | None:
    """What ``bench.peak_memory`` noted; it does so every fraction of a second."""
    time.sleep(1)
    return int(file.read_text()) if file.exists() else None
