"""Every path of every kind of model holds; a path that is broken on purpose is found."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mlxserver.engine.reuse import Reuse
from mlxserver.kv.batched_state import BatchedState
from mlxserver.kv.kv_type import KVType
from mlxserver.kv.slot_kv import RowBlock, SlotKV
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.rotary import Rotation
from mlxserver.validate.lab import Target
from tests.models import tiny
from tests.validate.labs import judged, judged_one, lab_of, verdicts

PLAIN = ["llama", "qwen3", "mixtral", "deepseek_v3"]
SLIDING = ["mistral_sliding", "gemma3", "gpt_oss"]
RECURRENT = ["mamba2", "qwen3_next", "falcon_h1"]
SHIFTED = ["chunk reuse, the same slot", "chunk reuse, another slot", "chunk reuse, stored", "context shift"]
HITS = ["prefix hit at 24, stored", "prefix hit at 24, another slot", "prefix hit at 24, the same slot"]


def llama() -> Any:
    return tiny.llama(head_dim=32)


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_attention(kind: str) -> None:
    found = judged(lab_of(tiny.ALL[kind]()))
    assert set(verdicts(found).values()) == {"ok"}, found
    assert found["prefix hit at 24, stored"].summary.n == 96 - 24
    assert found["batch of 4"].summary.n == 12
    assert found["context shift"].summary.n == 96 - 72
    assert found["context shift"].summary.max_difference > 1e-3, "values carry what was removed"


@pytest.mark.parametrize("kind", [*SLIDING, *RECURRENT])
def test_state_that_cannot_be_cut(kind: str) -> None:
    found = judged(lab_of(tiny.ALL[kind]()))
    impossible = {name for name, verdict in verdicts(found).items() if verdict == "not possible"}
    cut_back = {"prefix hit at 24, the same slot"}
    assert impossible - cut_back == set(SHIFTED)
    assert set(verdicts(found).values()) == {"ok", "not possible"}, found
    assert "cannot shift" in found["context shift"].note


@pytest.mark.parametrize("kind", SLIDING)
def test_whole_windows_can_be_moved(kind: str) -> None:
    found = judged(lab_of(tiny.ALL[kind](), swa_full=True))
    assert set(verdicts(found).values()) == {"ok"}, found


def test_quantised_kv() -> None:
    found = judged(lab_of(llama(), kv_types=("f16", "q8_0", "q4_1")))
    assert set(verdicts(found).values()) == {"ok"}
    sizes = [found[f"KV {name}"].summary.mean_kl for name in ("f16", "q8_0", "q4_1")]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    for name in ("f16", "q8_0", "q4_1"):
        assert found[f"KV {name}, prefix hit at 24"].summary.max_difference < 1e-4


@pytest.mark.parametrize("types", [("q8_0", "q8_0"), ("q5_1", "f16")])
def test_a_quantised_base(types: tuple[str, str]) -> None:
    found = judged(lab_of(llama(), cache_type_k=types[0], cache_type_v=types[1]))
    assert set(verdicts(found).values()) == {"ok"}, found
    assert found["prompt chunks of 7"].kind == found["batch of 2"].kind == "bounded"
    assert found["prefix hit at 24, stored"].kind == "exact"


def test_kv_that_does_not_fit() -> None:
    outcome = judged_one(lab_of(tiny.qwen3(), kv_types=("q8_0",)), "KV q8_0")
    assert (outcome.verdict, "does not divide" in outcome.note) == ("not possible", True)


@pytest.mark.parametrize("path", SHIFTED)
def test_keys_moved_without_a_rotation(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = lab_of(llama())
    assert judged_one(lab, path).verdict == "ok"
    assert lab.rig().states.cannot_shift == ""
    monkeypatch.setattr(Rotation, "moved", lambda self, x, start, to: x)
    monkeypatch.setattr("mlxserver.models.rotary._unexplained", lambda *args: (0.0, 0.0))
    outcome = judged_one(lab, path)
    assert outcome.verdict == "FAILED" and "moved keys off by" in outcome.note


@pytest.mark.parametrize("path", HITS)
def test_values_copied_wrongly(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = SlotKV.read

    def one_too_early(self: SlotKV, row: int, start: int, end: int) -> Any:
        keys, values = read(self, row, start, end)
        return keys, tuple(mx.roll(part, 1, axis=2) for part in values)

    monkeypatch.setattr(SlotKV, "read", one_too_early)
    verdict = judged_one(lab_of(llama()), path).verdict
    assert verdict == ("ok" if path.endswith("the same slot") else "FAILED"), "its state stays where it is"


def test_a_file_that_gives_other_values_back(monkeypatch: pytest.MonkeyPatch) -> None:
    write = SlotKV.write

    def scaled(self: SlotKV, row: int, start: int, keys: Any, values: Any) -> None:
        write(self, row, start, keys, tuple(part * 1.01 for part in values) if row == 0 else values)

    assert judged_one(lab_of(llama()), "restored from a file at 24").verdict == "ok"
    monkeypatch.setattr(SlotKV, "write", scaled)
    assert judged_one(lab_of(llama()), "restored from a file at 24").verdict == "FAILED"


def test_rows_that_see_beyond_their_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowBlock, "_mask", lambda self, window_size: None)
    monkeypatch.setattr("mlxserver.validate.rig.rows_agree", lambda *args: True)
    assert judged_one(lab_of(llama()), "batch of 1").verdict == "ok"
    for width in (2, 4):
        assert judged_one(lab_of(llama()), f"batch of {width}").verdict == "FAILED"


def test_a_snapshot_of_another_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchedState, "write", lambda self, row, cache: self.clear(row))
    assert judged_one(lab_of(tiny.qwen3_next()), HITS[0]).verdict == "FAILED"


def test_state_that_is_not_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reuse, "keep", lambda self, slot: [])
    outcome = judged_one(lab_of(llama()), HITS[0])
    assert (outcome.verdict, outcome.note) == ("FAILED", "0 tokens were reused, not 24")


def test_numbers_read_back_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = KVType.decode

    def scaled(self: KVType, parts: Any, dtype: mx.Dtype) -> mx.array:
        return decode(self, parts, dtype) * (-3.0 if self.bits else 1.0)

    lab = lab_of(llama(), kv_types=("q8_0",))
    monkeypatch.setattr(KVType, "decode", scaled)
    assert judged_one(lab, "KV q8_0").verdict == "FAILED"


def test_a_path_that_breaks_down_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(self: SlotKV, *args: Any) -> Any:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(SlotKV, "read", breaks)
    outcome = judged_one(lab_of(llama()), HITS[0])
    assert (outcome.verdict, outcome.note) == ("FAILED", "RuntimeError: out of memory")


def test_slots_that_cannot_be_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxserver.validate.rig.rows_agree", lambda *args: False)
    outcome = judged_one(lab_of(llama()), "batch of 2")
    assert (outcome.verdict, "one by one" in outcome.note) == ("not possible", True)


def test_a_cold_trace_whose_chunk_ends_at_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding that depends on the chunk would otherwise be taken for a fault of the cache."""
    chunks: list[int] = []
    prompt_chunk = SlotStates.prompt_chunk

    def noting(self: SlotStates, slot: int, n_new: int, *how: Any) -> Any:
        chunks.append(n_new)
        return prompt_chunk(self, slot, n_new, *how)

    lab = lab_of(llama(), kv_types=("q8_0",))
    monkeypatch.setattr(SlotStates, "prompt_chunk", noting)
    lab.cold(Target("q8_0", cut=24))
    assert [n for n in chunks if n > 1] == [24, 32, 32, 8]
