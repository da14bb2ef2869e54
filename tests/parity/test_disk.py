"""State from disk gives what a cold evaluation gives, for every cache kind and KV type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from tests.engine.disk_bench import PROMPT, Served
from tests.models import tiny

KINDS = ["llama", "mistral_sliding", "gemma3", "gpt_oss", "mamba2", "qwen3_next", "falcon_h1", "deepseek_v3"]
PLAIN = {"llama", "deepseek_v3"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_goes_on_after_a_restart(kind: str, tmp_path: Path) -> None:
    served = Served(tmp_path, getattr(tiny, kind))
    answer, n_past, n_disk = served.ask(PROMPT)
    assert answer == served.cold(PROMPT) and (n_past, n_disk) == (0, 0)
    served.restart()
    longer = [*PROMPT, *answer, 3, 1, 4]
    tokens, n_past, n_disk = served.ask(longer)
    assert tokens == served.cold(longer)
    assert n_past == n_disk == len(PROMPT) + len(answer) - 1, "only what is new was evaluated"
    stats = served.stats
    assert stats.hit_blocks == stats.read_blocks > 0 and stats.wasted_blocks == 0
    served.close()


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_part_anywhere_give_what_cold_ones_give(kind: str, tmp_path: Path) -> None:
    served = Served(tmp_path, getattr(tiny, kind), ctx_checkpoints=8)
    served.ask(PROMPT[:100])
    served.restart()
    reused = []
    for cut in range(3, 100, 16):
        other = [*PROMPT[:cut], *((7 * i + cut) % 250 for i in range(12))]
        tokens, n_past, _ = served.ask(other)
        assert tokens == served.cold(other), f"parting at {cut}"
        reused.append((cut, n_past))
        served.restart()
    if kind in PLAIN:
        assert all(n_past == cut or cut < 16 for cut, n_past in reused)
    served.close()


@pytest.mark.parametrize("types", [("q8_0", "q8_0"), ("q5_0", "q4_1"), ("bf16", "bf16"), ("f16", "f32")])
def test_kv_types_are_restored_as_they_are(types: tuple[str, str], tmp_path: Path) -> None:
    def make() -> Any:
        return tiny.llama(head_dim=32)

    served = Served(tmp_path, make, cache_type_k=types[0], cache_type_v=types[1])
    answer, *_ = served.ask(PROMPT)
    warm, *_ = served.ask([*PROMPT, 9])
    served.restart()
    tokens, n_past, n_disk = served.ask([*PROMPT, 9])
    assert tokens == warm and n_past == n_disk == len(PROMPT)
    assert answer == cold_under(types, make(), PROMPT)
    served.close()


def cold_under(types: tuple[str, str], module: Any, prompt: list[int], n: int = 8) -> list[int]:
    states = SlotStates(cache_maker(module), 1, *(KV_TYPES[name] for name in types))
    module(mx.array([prompt[:-1]]), cache=states.prompt_chunk(0, len(prompt) - 1))
    token, out = prompt[-1], []
    for _ in range(n):
        token = int(mx.argmax(module(mx.array([[token]]), cache=states.prompt_chunk(0, 1))[0, -1]).item())
        out.append(token)
    return out
