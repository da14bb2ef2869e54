"""What the soak serves: a random model of two layers, or a GGUF file, each with three random adapters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import gguf
import mlx.core as mx

from bench.lora import write_adapter
from mlxserver.models.lora.targets import find_targets
from tests.models import tiny, tiny_folder
from tests.models.lora.adapters import matrices, write_mlx

N_ADAPTERS = 3
RANK = 4
CONTEXT = 1024
"""Tokens of a slot."""
N_ASCII, NEWLINE, SPACE, END = 94, 198, 220, 255
"""Ids of the tiny models' tokens."""
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "


@dataclass(frozen=True)
class Served:
    """``adapters`` lie in one folder. ``longest``: letters of a prompt, far below a slot's context.

    ``cache_ram``: MiB that hold a fraction of the prompts, so that stored state is evicted all the time.
    ``cache_disk``: MiB that are full within the first third of the time, since a file takes 2.5 KB of
    memory in the index.
    """

    model: Path
    adapters: tuple[Path, ...]
    longest: int
    cache_ram: int
    cache_disk: int


def tiny_model(folder: Path) -> Served:
    """A token is a letter; 256 bytes of state a token. The best token is a letter of ASCII, or the end:
    a stream leaves out incomplete characters, as llama-server's does, which the whole answer has."""
    module = tiny.llama()
    wanted = mx.array([id < N_ASCII or id in (NEWLINE, SPACE, END) for id in range(tiny.VOCAB)])
    module.lm_head.weight = mx.where(wanted[:, None], module.lm_head.weight, 0)
    model = tiny_folder.write(folder / "model", module, max_position_embeddings=CONTEXT)
    settings = model / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
    (folder / "adapters").mkdir()
    paths = [path for path in find_targets(module) if path.startswith("model.layers")]
    adapters = tuple(
        write_mlx(folder / "adapters" / str(seed), matrices(module, seed, RANK, paths))
        for seed in range(N_ADAPTERS)
    )
    return Served(model, adapters, longest=700, cache_ram=2, cache_disk=4)


def gguf_model(model: Path, folder: Path) -> Served:
    """Any model; the bound of the cache is meant for one of about 46 KB of state a token."""
    base = gguf.GGUFReader(model)
    (folder / "adapters").mkdir()
    adapters = tuple(folder / "adapters" / f"{seed}.gguf" for seed in range(N_ADAPTERS))
    for seed, path in enumerate(adapters):
        write_adapter(base, path, RANK, seed)
    return Served(model, adapters, longest=500, cache_ram=16, cache_disk=64)
