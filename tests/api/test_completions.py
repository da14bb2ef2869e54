"""The completion routes over a scripted engine."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from mlxserver.api.completion_json import NativeDialect
from mlxserver.api.completions import completion, openai_completion
from mlxserver.engine.task import Failed
from tests.api.client import client, events
from tests.api.fake_engine import EOS, FakeEngine, fake_state


def serve(engine: FakeEngine, *argv: str) -> TestClient:
    return client(fake_state(engine, *argv), completion=completion, v1=openai_completion)


def native(engine: FakeEngine, *argv: str, **body: Any) -> Any:
    return serve(engine, *argv).post("/completion", json={"prompt": "hi"} | body)


def test_a_plain_answer_has_every_field_in_order() -> None:
    answer = native(FakeEngine("one two"), n_predict=3).json()
    assert list(answer) == [
        "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated",
        "generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word",
        "tokens_cached", "timings",
    ]  # fmt: skip
    assert answer["content"] == "one"
    assert (answer["tokens_predicted"], answer["tokens_evaluated"], answer["tokens_cached"]) == (3, 3, 5)
    assert (answer["stop_type"], answer["truncated"], answer["prompt"]) == ("limit", False, "<s>hi")
    assert answer["tokens"] == []


def test_settings_echo_in_order() -> None:
    settings = native(FakeEngine("a"), temperature=0.3, seed=-1, logit_bias=[[5, False]]).json()[
        "generation_settings"
    ]
    assert list(settings)[:3] == ["seed", "temperature", "dynatemp_range"]
    assert list(settings)[-3:] == ["post_sampling_probs", "backend_sampling", "lora"]
    assert settings["temperature"] == 0.30000001192092896
    assert settings["seed"] == 4294967295
    assert settings["logit_bias"] == [{"bias": None, "token": 5}]
    assert len(settings) == 49


def test_timings_add_up() -> None:
    timings = native(FakeEngine("abcd", n_past=1)).json()["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (1, 2, 4)
    assert timings["prompt_ms"] == pytest.approx(10)
    assert timings["predicted_ms"] == pytest.approx(30)
    assert timings["predicted_per_token_ms"] == pytest.approx(10)
    assert timings["predicted_per_second"] == pytest.approx(100)
    assert timings["prompt_per_second"] == pytest.approx(200)
    assert "mlxserver" not in timings


def test_with_a_disk_tier_timings_tell_where_reused_tokens_came_from() -> None:
    timings = native(FakeEngine("abcd", n_past=2, n_disk=1)).json()["timings"]
    assert timings["mlxserver"] == {"cache_ram_n": 1, "cache_disk_n": 1}
    assert timings["cache_n"] + timings["prompt_n"] == 3


def test_end_token_counts_and_has_no_text() -> None:
    answer = native(FakeEngine([*b"ok", EOS]), return_tokens=True).json()
    assert (answer["content"], answer["stop_type"]) == ("ok", "eos")
    assert answer["tokens"] == [*b"ok", EOS]


def test_special_tokens_show_with_the_option() -> None:
    assert native(FakeEngine([*b"ok", EOS]), "--special").json()["content"] == "ok<|end|>"
    answer = native(FakeEngine([*b"ok", EOS]), preserved_tokens=["<|end|>"]).json()
    assert answer["content"] == "ok<|end|>"
    assert answer["generation_settings"]["preserved_tokens"] == [EOS]


def test_stop_word_ends_the_engine_at_its_token() -> None:
    engine = FakeEngine("one two three")
    answer = native(engine, stop=["tw"]).json()
    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == ("one ", "word", "tw")
    assert engine.runs[0].stopped_at == 6
    assert (answer["tokens_predicted"], answer["tokens_cached"]) == (6, 8)


def test_stop_word_at_the_last_allowed_token_is_a_word() -> None:
    answer = native(FakeEngine("one"), n_predict=3, stop=["e"]).json()
    assert (answer["content"], answer["stop_type"], answer["truncated"]) == ("on", "word", False)


@pytest.mark.parametrize(("shifted_after", "truncated"), [(1, True), (2, True), (3, False), (4, False)])
@pytest.mark.parametrize("n_predict", [-1, 3, 4])
def test_a_stop_word_behind_a_context_shift_is_a_word(
    n_predict: int, shifted_after: int, truncated: bool
) -> None:
    """Also where the engine was ahead of the stop word, or a limit came with it."""
    engine = FakeEngine("one two", shifted_after=shifted_after)
    answer = native(engine, n_predict=n_predict, stop=["e"]).json()
    assert (answer["content"], answer["stop_type"], answer["truncated"]) == ("on", "word", truncated)


def test_running_out_of_context_goes_before_a_stop_word() -> None:
    answer = native(FakeEngine("one"), stop=["e"]).json()
    assert (answer["content"], answer["stop_type"], answer["truncated"]) == ("on", "limit", True)


def test_empty_prompt_is_an_empty_answer() -> None:
    answer = native(FakeEngine("x"), prompt=[[]]).json()
    assert (answer["content"], answer["stop_type"], answer["tokens_predicted"]) == ("", "none", 0)
    assert set(answer["timings"].values()) == {0}


def test_stream_has_an_event_a_token_and_the_answer_last() -> None:
    got = native(FakeEngine("ab"), stream=True)
    assert got.headers["content-type"].startswith("text/event-stream")
    assert got.headers["x-accel-buffering"] == "no"
    first, second, last = events(got)
    assert first == {
        "index": 0, "content": "a", "tokens": [97], "stop": False, "id_slot": -1,
        "tokens_predicted": 1, "tokens_evaluated": 3,
    }  # fmt: skip
    assert second["content"] == "b"
    assert (last["content"], last["stop"], last["tokens_predicted"], last["tokens"]) == ("", True, 2, [])


def test_stream_holds_cut_characters_back() -> None:
    got = events(native(FakeEngine("é!"), stream=True))
    assert [event["content"] for event in got] == ["é", "!", ""]
    assert [event["tokens"] for event in got] == [[0xA9], [33], []]


def test_stream_never_sends_what_may_become_a_stop_word() -> None:
    got = events(native(FakeEngine("abc"), stream=True, stop=["cd"], n_predict=3))
    assert [event["content"] for event in got] == ["a", "b", "", ""]
    assert native(FakeEngine("abc"), stop=["cd"], n_predict=3).json()["content"] == "abc"


def test_the_token_that_meets_a_stop_word_has_timings() -> None:
    got = events(native(FakeEngine("abcd"), stream=True, stop=["c"]))
    assert ["timings" in event for event in got] == [False, False, True, True]


def test_progress_events() -> None:
    got = events(native(FakeEngine("a", n_past=2), prompt="123456", stream=True, return_progress=True))
    progress = [event["prompt_progress"] for event in got if "prompt_progress" in event]
    assert [(p["total"], p["cache"], p["processed"]) for p in progress] == [(7, 2, 2), (7, 2, 6), (7, 2, 7)]
    assert [p["time_ms"] for p in progress] == [0, 10, 20]
    assert got[0]["tokens"] == [0]
    assert native(FakeEngine("a"), return_progress=True).json()["stop"] is True


def test_probabilities() -> None:
    answer = native(FakeEngine("ab"), n_probs=2).json()
    assert answer["completion_probabilities"][0] == {
        "id": 97, "token": "a", "bytes": [97], "logprob": -0.5,
        "top_logprobs": [
            {"id": 97, "token": "a", "bytes": [97], "logprob": -0.5},
            {"id": 98, "token": "b", "bytes": [98], "logprob": -1.5},
        ],
    }  # fmt: skip
    got = events(native(FakeEngine("ab"), n_probs=1, stream=True))
    assert [len(event.get("completion_probabilities", [])) for event in got] == [1, 1, 0]


def test_a_stop_word_takes_its_probabilities_along() -> None:
    answer = native(FakeEngine("a, b, c"), n_probs=1, stop=["b,"]).json()
    assert [entry["token"] for entry in answer["completion_probabilities"]] == ["a", ",", " "]


def test_response_fields() -> None:
    wanted = ["content", "timings/predicted_n", "nope", "generation_settings/nope"]
    assert native(FakeEngine("ab"), response_fields=wanted).json() == {
        "content": "ab",
        "timings/predicted_n": 2,
    }


def test_several_prompts_and_completions_are_numbered() -> None:
    answers = native(FakeEngine("ab", "cd"), prompt=["x", "yz"], n_cmpl=2, seed=7).json()
    assert [answer["index"] for answer in answers] == [0, 1, 2, 3]
    assert [answer["content"] for answer in answers] == ["ab", "ab", "cd", "cd"]
    assert [answer["prompt"] for answer in answers] == ["<s>x", "<s>x", "<s>yz", "<s>yz"]
    assert [answer["generation_settings"]["seed"] for answer in answers] == [7, 8, 7, 8]


def test_two_prompts_in_one_stream() -> None:
    got = events(native(FakeEngine("ab", "cd"), prompt=["x", "y"], stream=True))
    assert got.count(None) == 1
    texts = {index: "".join(e["content"] for e in got if e and e["index"] == index) for index in (0, 1)}
    assert texts == {0: "ab", 1: "cd"}


FULL = Failed(0, "exceed_context_size_error", "too long", {"n_prompt_tokens": 600, "n_ctx": 512})


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_stream_has_its_own_status(stream: bool) -> None:
    engine = FakeEngine(FULL)
    got = native(engine, stream=stream)
    assert got.status_code == 400
    assert got.json() == {
        "error": {
            "code": 400, "message": "too long", "type": "exceed_context_size_error",
            "n_prompt_tokens": 600, "n_ctx": 512,
        }
    }  # fmt: skip


def test_a_failure_inside_the_stream_is_its_last_event() -> None:
    engine = FakeEngine("ab")
    engine_submit = engine.submit

    def submit(task: Any) -> Any:
        run = engine_submit(task)
        run.failure = Failed(run.task_id, "server_error", "Compute error.")
        return run

    engine.submit = submit  # type: ignore[method-assign]
    got = events(serve(engine).post("/v1", json={"prompt": "x", "stream": True}))
    assert [event["choices"][0]["text"] for event in got[:2]] == ["a", "b"]
    assert got[2:] == [{"error": {"code": 500, "message": "Compute error.", "type": "server_error"}}]


def test_one_failing_prompt_ends_the_others() -> None:
    engine = FakeEngine("a" * 200, FULL)
    assert native(engine, prompt=["x", "y"]).status_code == 400
    assert engine.runs[0].cancelled


def test_openai_answer() -> None:
    answer = serve(FakeEngine("abc")).post("/v1", json={"prompt": "hi", "max_tokens": 2}).json()
    assert list(answer) == [
        "choices", "created", "model", "system_fingerprint", "object", "usage", "id", "timings",
    ]  # fmt: skip
    assert answer["choices"] == [{"text": "ab", "index": 0, "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {
        "completion_tokens": 2, "prompt_tokens": 3, "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    assert answer["id"].startswith("chatcmpl-") and len(answer["id"]) == 41


def test_openai_choices_are_merged() -> None:
    answer = serve(FakeEngine("ab", [*b"c", EOS])).post("/v1", json={"prompt": ["x", "yy"]}).json()
    assert [(c["text"], c["index"], c["finish_reason"]) for c in answer["choices"]] == [
        ("ab", 0, "length"),
        ("c", 1, "stop"),
    ]
    assert answer["usage"]["prompt_tokens"] == 2


def test_openai_stream() -> None:
    got = events(serve(FakeEngine("ab")).post("/v1", json={"prompt": "hi", "stream": True, "logprobs": 1}))
    assert got[-1] == "[DONE]"
    first, _, last = got[:-1]
    assert list(first) == ["choices", "created", "model", "system_fingerprint", "object", "id"]
    assert first["choices"][0]["logprobs"]["content"][0]["token"] == "a"
    assert first["choices"][0]["finish_reason"] is None
    assert last["choices"] == [{"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}]
    assert last["usage"]["completion_tokens"] == 2
    assert "timings" in last


def test_openai_verbose() -> None:
    answer = serve(FakeEngine("ab")).post("/v1", json={"prompt": "hi", "verbose": True}).json()
    assert answer["__verbose"]["content"] == "ab"
    assert list(answer).index("__verbose") == list(answer).index("timings") - 1


def test_a_fault_inside_the_stream_is_an_error_event(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter([[1], ZeroDivisionError("oops")])

    def events_of(self: NativeDialect, update: Any) -> list[Any]:
        outcome = next(calls)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(NativeDialect, "events", events_of)
    engine = FakeEngine("abc")
    got = events(native(engine, stream=True))
    assert got == [1, {"error": {"code": 500, "message": "oops", "type": "server_error"}}]
    assert engine.runs[0].cancelled


@pytest.mark.parametrize(
    ("argv", "body", "bound"),
    [
        ((), {}, -1),
        (("-n", "6"), {}, 6),
        (("-n", "6"), {"n_predict": 3}, 3),
        (("-n", "6"), {"n_predict": -1}, 6),
        (("-n", "0"), {}, 0),
        (("-n", "-2"), {}, 0),
    ],
)
def test_the_bound_of_tokens_is_the_requests_or_the_options(
    argv: tuple[str, ...], body: dict[str, int], bound: int
) -> None:
    engine = FakeEngine("one")
    settings = native(engine, *argv, **body).json()["generation_settings"]
    assert engine.runs[0].task.n_predict == bound
    shown = body.get("n_predict", int(argv[1]) if argv else -1)
    assert settings["n_predict"] == settings["max_tokens"] == shown


@pytest.mark.parametrize(
    ("body", "kept"), [({}, 7), ({"n_keep": None}, 7), ({"n_keep": 3}, 3), ({"n_keep": -1}, -1)]
)
def test_the_tokens_to_keep_are_the_requests_or_the_options(body: dict[str, Any], kept: int) -> None:
    engine = FakeEngine("one")
    settings = native(engine, "--keep", "7", **body).json()["generation_settings"]
    assert engine.runs[0].task.n_keep == settings["n_keep"] == kept
