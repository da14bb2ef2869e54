"""Slots saved to files and brought back, for every cache kind; bad files change nothing."""

from __future__ import annotations

import os
import queue
from pathlib import Path
from typing import Any

import pytest

from mlxserver.engine.mailbox import SlotAction, SlotOutcome
from mlxserver.engine.task import Started
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.slot_file import TEMPORARY
from mlxserver.kv.state_file import packed, read_state
from tests.engine.bench import Bench, oracle
from tests.models import tiny

KINDS = ["llama", "mistral_sliding", "gemma3", "mamba2", "qwen3_next", "falcon_h1", "deepseek_v3"]
PROMPT = [(11 * i + 5) % 250 for i in range(40)]


def act(bench: Bench, kind: Any, slot: int, path: Path | None = None) -> SlotOutcome:
    replies: queue.SimpleQueue[SlotOutcome] = queue.SimpleQueue()
    bench.engine.post(SlotAction(kind, slot, path, replies.put))
    return replies.get(timeout=60)


def tokens_in(bench: Bench, slot: int) -> int:
    return bench.engine.snapshot().slots[slot].n_prompt_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_over_a_restart(kind: str, tmp_path: Path) -> None:
    first = Bench(getattr(tiny, kind))
    first.submit(0, PROMPT, n_predict=6, id_slot=0)
    (tokens,) = first.finish(0)
    saved = act(first, "save", 0, tmp_path / "state.bin")
    first.close()
    assert saved.error == "" and saved.n_bytes == (tmp_path / "state.bin").stat().st_size
    assert (tmp_path / "state.bin").stat().st_mode & 0o077 == 0

    second = Bench(getattr(tiny, kind))
    restored = act(second, "restore", 2, tmp_path / "state.bin")
    assert (restored.error, restored.n_tokens, restored.n_bytes) == ("", saved.n_tokens, saved.n_bytes)
    longer = PROMPT + tokens + [1, 2, 3]
    second.submit(1, longer, n_predict=8, id_slot=2)
    assert second.finish(1)[0] == oracle(getattr(tiny, kind)(), longer, 8)
    assert second.of(1, Started)[0].n_past == saved.n_tokens
    second.close()


def test_erase_empties_the_slot() -> None:
    bench = Bench(tiny.llama)
    bench.submit(0, PROMPT, n_predict=3, id_slot=1)
    bench.finish(0)
    assert act(bench, "erase", 1).n_tokens == len(PROMPT) + 2
    assert act(bench, "erase", 1).n_tokens == 0
    assert tokens_in(bench, 1) == 0
    bench.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("saved_slot", [0, 1])
def test_an_empty_slot_is_saved_and_restored(kind: str, saved_slot: int, tmp_path: Path) -> None:
    """Before the first token of all, and beside another slot's state."""
    bench = Bench(getattr(tiny, kind))
    if saved_slot == 1:
        bench.submit(0, PROMPT, n_predict=2, id_slot=0)
        bench.finish(0)
    assert act(bench, "save", saved_slot, tmp_path / "empty").error == ""
    bench.submit(1, PROMPT, n_predict=2, id_slot=1)
    bench.finish(1)
    outcome = act(bench, "restore", 1, tmp_path / "empty")
    assert (outcome.error, outcome.n_tokens) == ("", 0)
    assert tokens_in(bench, 1) == 0
    bench.submit(2, PROMPT[::-1], n_predict=8, id_slot=1)
    assert bench.finish(2)[0] == oracle(getattr(tiny, kind)(), PROMPT[::-1], 8)
    bench.close()


def test_an_absent_file_empties_the_slot_but_its_state_is_not_lost(tmp_path: Path) -> None:
    bench = Bench(tiny.llama)
    bench.submit(0, PROMPT, n_predict=1, id_slot=1)
    bench.finish(0)
    outcome = act(bench, "restore", 1, tmp_path / "absent")
    assert outcome.error == "No available space in KV cache or invalid slot save file"
    assert tokens_in(bench, 1) == 0
    bench.submit(1, PROMPT, n_predict=1)
    bench.finish(1)
    assert bench.of(1, Started)[0].n_past == len(PROMPT) - 1
    bench.close()


def test_files_that_do_not_belong_here_leave_the_slot_as_it_was(tmp_path: Path) -> None:
    other = Bench(lambda: tiny.llama(num_hidden_layers=3))
    other.submit(0, PROMPT, n_predict=1, id_slot=0)
    other.finish(0)
    act(other, "save", 0, tmp_path / "other-model")
    other.close()
    rope = Bench(tiny.llama, rope="another base")
    rope.submit(0, PROMPT, n_predict=1, id_slot=0)
    rope.finish(0)
    act(rope, "save", 0, tmp_path / "other-rope")
    rope.close()
    types = Bench(tiny.llama, cache_type_k="f16")
    types.submit(0, PROMPT, n_predict=1, id_slot=0)
    types.finish(0)
    act(types, "save", 0, tmp_path / "other-type")
    types.close()

    bench = Bench(tiny.llama)
    bench.submit(0, PROMPT, n_predict=1, id_slot=0)
    bench.finish(0)
    act(bench, "save", 0, tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    (tmp_path / "text").write_text("not a slot file")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "cut").write_bytes(good[: len(good) // 2])
    flipped = bytearray(good)
    flipped[-9] ^= 1
    (tmp_path / "flipped").write_bytes(flipped)
    (tmp_path / "link").symlink_to(tmp_path / "good")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in [
        "other-model",
        "other-rope",
        "other-type",
        "text",
        "empty",
        "cut",
        "flipped",
        "link",
        "folder",
        "pipe",
    ]:
        outcome = act(bench, "restore", 0, tmp_path / name)
        assert outcome.error, name
        assert tokens_in(bench, 0) == len(PROMPT), name
    assert act(bench, "restore", 3, tmp_path / "good").error == ""
    bench.submit(1, PROMPT, n_predict=5, id_slot=3)
    assert bench.finish(1)[0] == oracle(tiny.llama(), PROMPT, 5)
    bench.close()


def test_state_of_an_adapter_stays_with_it(tmp_path: Path) -> None:
    bench = Bench(tiny.llama, cache_ram=0)
    identity = CacheIdentity(adapters=(("a", 0.5),))
    bench.submit(0, PROMPT, n_predict=1, id_slot=0, identity=identity)
    bench.finish(0)
    act(bench, "save", 0, tmp_path / "adapted")
    act(bench, "restore", 1, tmp_path / "adapted")
    bench.submit(1, PROMPT, n_predict=1, id_slot=1)
    bench.finish(1)
    assert bench.of(1, Started)[0].n_past == 0
    bench.close()


def test_an_action_on_a_busy_slot_waits_and_goes_before_waiting_tasks(tmp_path: Path) -> None:
    bench = Bench(tiny.llama, n_slots=1)
    bench.submit(0, PROMPT, n_predict=100)
    bench.submit(1, [9, 8, 7], n_predict=2)
    saved = act(bench, "save", 0, tmp_path / "busy")
    assert saved.n_tokens == len(PROMPT) + 99
    bench.finish(0, 1)
    bench.close()


def test_a_folder_that_cannot_be_written_is_an_error_not_a_crash(tmp_path: Path) -> None:
    bench = Bench(tiny.llama)
    bench.submit(0, PROMPT, n_predict=1, id_slot=0)
    bench.finish(0)
    assert act(bench, "save", 0, tmp_path / "absent" / "file").error
    assert not [name for name in os.listdir(tmp_path) if name.startswith(TEMPORARY)]
    bench.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": [1.5] * 42},
        {"tokens": 42},
        {"tokens": None},
        {"exact_until": "x"},
        {"exact_until": -5},
        {"tenant": [1]},
        {"adapters": [[1]]},
        {"states": [5]},
    ],
)
def test_a_header_that_no_server_wrote_changes_nothing(changes: dict[str, Any], tmp_path: Path) -> None:
    bench = Bench(tiny.llama)
    bench.submit(0, PROMPT, n_predict=3, id_slot=0)
    bench.finish(0)
    path = tmp_path / "state.bin"
    act(bench, "save", 0, path)
    with path.open("rb") as file:
        header, tensors = read_state(file)
    path.write_bytes(b"".join(packed(header | changes, tensors)))
    assert act(bench, "restore", 0, path).error.startswith("the file's header is damaged")
    assert tokens_in(bench, 0) == len(PROMPT) + 2
    bench.close()
