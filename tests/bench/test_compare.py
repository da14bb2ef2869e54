from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.compare import chosen, may_play, play_rounds, recorded
from bench.contestants import Needs, Weights, llama_server, mlx_lm_server, mlxserver
from bench.results import Results
from bench.texts import assistant, prose, user
from bench.workload import Figures
from bench.workloads import WORKLOADS
from bench.workloads.agent import conversation
from bench.workloads.memory import token_bytes

WEIGHTS = Weights(Path("m.gguf"), Path("m"))


def fails(workload: str, weights: Weights, round: int) -> Figures:
    raise RuntimeError("it fell")


def test_a_failed_contestant_leaves_the_others_alone(tmp_path: Path) -> None:
    def plays(workload: str, weights: Weights, round: int) -> Figures:
        return {"n/s": float(round)}

    results = Results(tmp_path / "results.json")
    play_rounds(results, "burst", WEIGHTS, {"a": fails, "b": plays}, 2, False)
    first, second = Results(results.file).workloads["burst"].rounds
    assert (first["a"].error, second["b"].figures) == ("RuntimeError: it fell", {"n/s": 1.0})


def test_what_is_known_is_not_played_again(tmp_path: Path) -> None:
    calls: list[int] = []

    def plays(workload: str, weights: Weights, round: int) -> Figures:
        calls.append(round)
        return {}

    for runs in (2, 3):
        play_rounds(Results(tmp_path / "results.json"), "burst", WEIGHTS, {"a": plays}, runs, False)
    assert calls == [0, 1, 2]


def test_an_error_is_a_record() -> None:
    assert recorded(fails, "burst", WEIGHTS, 0).error == "RuntimeError: it fell"


def test_commands() -> None:
    needs = Needs(slots=4, context=512, cache_reuse=64)
    options = ["-c", "2048", "-np", "4", "-ctk", "f32", "-ctv", "f32", "--cache-reuse", "64"]
    assert mlxserver(WEIGHTS, needs) == [sys.executable, "-m", "mlxserver", "-m", "m", *options]
    assert llama_server(Path("l"))(WEIGHTS, needs) == ["l", "-m", "m.gguf", *options]
    assert mlx_lm_server(WEIGHTS, needs)[-2:] == ["--decode-concurrency", "4"]


def test_unknown_names_are_refused() -> None:
    assert chosen("b", "ab") == ["b"]
    assert chosen(None, "ab") == ["a", "b"]
    with pytest.raises(SystemExit, match="unknown: c"):
        chosen("a,c", "ab")


def test_the_bare_loops_play_streams_only() -> None:
    assert {name for name, work in WORKLOADS.items() if may_play("bare loop", work)} == {"streams", "tiny"}
    assert all(may_play("mlxserver", work) for work in WORKLOADS.values())


def test_texts_are_new_and_of_the_wanted_length() -> None:
    first, second = prose(100, 1), prose(100, 2)
    assert len(first.split()) == 100
    assert first.split()[:4] != second.split()[:4]


def test_the_agent_drops_old_results() -> None:
    results = [user(f"long {i}") for i in range(5)]
    answers = [assistant(f"answer {i}") for i in range(4)]
    texts = [message["content"] for message in conversation(results, answers)]
    assert texts == ["long 2", "answer 2", "long 3", "answer 3", "long 4"]
    assert [m["content"] for m in conversation(results[:1], [])] == ["long 0"]


def test_bytes_of_a_token() -> None:
    config = {"num_key_value_heads": 3, "head_dim": 64, "num_hidden_layers": 30}
    assert token_bytes(config) == 2 * 30 * 3 * 64 * 4
