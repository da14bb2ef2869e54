"""Chat completions over a scripted engine: answers, chunks, prefill, counts, control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mlxserver.api.completion_progress import RunningCompletion
from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.completion_runner import Completions
from mlxserver.api.running_chat import RunningChat
from mlxserver.engine.task import Task
from tests.api.client import events
from tests.api.fake_engine import EOS, ByteTokenizer, FakeEngine
from tests.api.served import client_of, served, served_state

HI = [{"role": "user", "content": "hi"}]
GOING_ON = [*HI, {"role": "assistant", "content": "The "}]
PATH = "/v1/chat/completions"
_READER: Any = (ByteTokenizer(), False, False)


def ask(*script: str | Sequence[int], argv: tuple[str, ...] = (), **body: Any) -> Any:
    client = served(*argv, engine=FakeEngine(*script))
    response = client.post(PATH, json={"messages": HI} | body)
    return events(response) if body.get("stream") else response.json()


def deltas(chunks: list[Any], index: int = 0) -> list[Any]:
    choices = [choice for chunk in chunks[:-1] for choice in chunk["choices"]]
    return [choice["delta"] for choice in choices if choice["index"] == index]


ROLE = {"role": "assistant", "content": None}


def test_an_answer_has_openais_keys_in_llama_servers_order() -> None:
    answer = ask([*b"ok", EOS])
    assert list(answer) == [
        "choices",
        "created",
        "model",
        "system_fingerprint",
        "object",
        "usage",
        "id",
        "timings",
    ]
    message = {"role": "assistant", "content": "ok"}
    assert answer["choices"] == [{"finish_reason": "stop", "index": 0, "message": message}]
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["usage"]["completion_tokens"] == 3


def test_both_paths_answer() -> None:
    assert served().post("/chat/completions", json={"messages": HI}).status_code == 200


def test_a_limit_is_told() -> None:
    assert ask("abcdef", max_tokens=2)["choices"][0]["finish_reason"] == "length"
    assert ask([*b"ab"], max_tokens=2, stream=True)[-2]["choices"][0]["finish_reason"] == "length"


def test_a_stream_begins_with_the_role_and_ends_with_done() -> None:
    chunks = ask([*b"ok", EOS], stream=True)
    assert deltas(chunks) == [ROLE, {"content": "o"}, {"content": "k"}, {}]
    assert chunks[-1] == "[DONE]"
    last = chunks[-2]
    assert list(last) == ["choices", "created", "id", "model", "system_fingerprint", "object", "timings"]
    assert last["choices"] == [{"finish_reason": "stop", "index": 0, "delta": {}}]
    assert len({chunk["id"] for chunk in chunks[:-1]}) == 1


def test_usage_stands_in_a_chunk_of_its_own_where_asked_for() -> None:
    chunks = ask([*b"ok", EOS], stream=True, stream_options={"include_usage": True})
    usage = chunks[-2]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)
    assert "timings" in usage
    assert "timings" not in chunks[-3]
    assert not [c for c in ask("ok", stream=True)[:-1] if "usage" in c]


def test_progress_carries_the_role() -> None:
    chunks = ask([*b"o", EOS], stream=True, return_progress=True)
    progress = [chunk for chunk in chunks[:-1] if "prompt_progress" in chunk]
    assert progress == chunks[: len(progress)]
    assert {str(chunk["choices"][0]["delta"]) for chunk in progress} == {str(ROLE)}
    final = progress[-1]["prompt_progress"]
    assert final["processed"] == final["total"]


def test_a_token_that_cuts_a_character_sends_nothing() -> None:
    chunks = ask([*"é!".encode(), EOS], stream=True)
    assert deltas(chunks) == [{"content": "é"}, {"content": "!"}, {}]


def test_timings_of_each_token_stand_in_its_last_chunk() -> None:
    chunks = ask([*b"ok", EOS], stream=True, timings_per_token=True)
    assert ["timings" in chunk for chunk in chunks[:-1]] == [False, True, True, True]


class TestLogprobs:
    def test_plain(self) -> None:
        [choice] = ask([*b"ok", EOS], logprobs=True, top_logprobs=2)["choices"]
        assert list(choice) == ["finish_reason", "index", "message", "logprobs"]
        entries = choice["logprobs"]["content"]
        assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2, 2]
        assert "logprobs" not in ask("ok", logprobs=True, top_logprobs=0)["choices"][0]

    def test_streamed_in_the_last_chunk_of_the_token(self) -> None:
        chunks = ask([*b"ok", EOS], stream=True, logprobs=True, top_logprobs=1)
        found = [len(c["choices"][0].get("logprobs", {}).get("content", [])) for c in chunks[:-1]]
        assert found == [0, 1, 1, 0]


class TestChoices:
    def test_plain(self) -> None:
        choices = ask([*b"ok", EOS], n=2)["choices"]
        assert [(c["index"], c["message"]["content"]) for c in choices] == [(0, "ok"), (1, "ok")]

    def test_streamed_each_with_its_role_and_end(self) -> None:
        chunks = ask([*b"ok", EOS], n=2, stream=True)
        for index in (0, 1):
            assert deltas(chunks, index) == [ROLE, {"content": "o"}, {"content": "k"}, {}]
        assert chunks.count("[DONE]") == 1


class TestPrefill:
    def test_the_answer_repeats_it(self) -> None:
        assert ask([*b"ok", EOS], messages=GOING_ON)["choices"][0]["message"]["content"] == "The ok"

    def test_the_first_chunk_repeats_it(self) -> None:
        chunks = ask([*b"ok", EOS], messages=GOING_ON, stream=True)
        assert deltas(chunks) == [ROLE, {"content": "The o"}, {"content": "k"}, {}]

    @pytest.mark.parametrize(("echo", "first"), [(False, "o"), (True, "The o")])
    def test_an_explicit_continuation_streams_what_is_new(self, echo: bool, first: str) -> None:
        body = {"continue_final_message": True, "add_generation_prompt": False, "echo": echo}
        chunks = ask([*b"ok", EOS], messages=GOING_ON, stream=True, **body)
        assert deltas(chunks)[1] == {"content": first}
        whole = ask([*b"ok", EOS], messages=GOING_ON, **body)
        assert whole["choices"][0]["message"]["content"] == "The ok"

    def test_an_answer_that_ends_at_once_still_has_it(self) -> None:
        chunks = ask([EOS], messages=GOING_ON, stream=True)
        assert deltas(chunks) == [ROLE, {"content": "The "}, {}]

    def test_progress_brings_it_first(self) -> None:
        chunks = ask([*b"o", EOS], messages=GOING_ON, stream=True, return_progress=True)
        assert deltas(chunks)[:2] == [ROLE, {"content": "The "}]
        assert "prompt_progress" in chunks[1]


def test_verbose_shows_the_native_answer() -> None:
    answer = ask([*b"ok", EOS], verbose=True)
    assert list(answer)[-2:] == ["__verbose", "timings"]
    assert answer["__verbose"]["generation_settings"]["chat_format"] == "peg-native"
    chunks = ask([*b"ok", EOS], verbose=True, stream=True)
    assert chunks[-2]["__verbose"]["stop"] is True


def test_errors_come_before_the_stream() -> None:
    answer = served().post(PATH, json={"stream": True})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "'messages' is required")
    answer = served().post(PATH, json={"messages": HI, "stream": True, "max_tokens": -2})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json; charset=utf-8")


def test_a_prompt_can_be_seen_and_counted() -> None:
    client = served()
    prompt = client.post("/apply-template", json={"messages": HI}).json()["prompt"]
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"):
        answer = client.post(path, json={"messages": HI}).json()
        assert answer == {"input_tokens": len(prompt) + 1, "object": "response.input_tokens"}


class TestControl:
    path = f"{PATH}/control"

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({}, "missing completion id"),
            ([], "missing completion id"),
            ({"id": "x"}, "unknown control action"),
            ({"id": "x", "action": "stop"}, "unknown control action"),
        ],
    )
    def test_what_is_refused(self, body: Any, message: str) -> None:
        response = served().post(self.path, json=body)
        assert (response.status_code, response.json()["error"]["message"]) == (400, message)

    def test_an_unknown_completion(self) -> None:
        answer = served().post(self.path, json={"id": "x", "action": "reasoning_end"}).json()
        assert answer == {"success": False, "message": "no active completion for this id"}

    @pytest.mark.parametrize(
        ("control", "answer"),
        [
            (True, {"success": True}),
            (False, {"success": False, "message": "reasoning control not enabled for this completion"}),
        ],
    )
    def test_a_running_completion_must_have_asked_for_it(self, control: bool, answer: Any) -> None:
        engine, state = FakeEngine("ok"), served_state()
        run = engine.submit(Task(0, (1,)))
        completions = Completions([RunningCompletion(0, run, CompletionRequest(), (1,), *_READER)])
        state.chats["x"] = running = RunningChat(completions, control)
        found = client_of(state).post(self.path, json={"id": "x", "action": "reasoning_end"}).json()
        assert (found, run.reasoning_ended) == (answer, control)
        assert running is state.chats["x"]

    def test_a_completion_is_forgotten_when_it_ends(self) -> None:
        state = served_state(engine=FakeEngine([*b"ok", EOS]))
        client = client_of(state)
        client.post(PATH, json={"messages": HI})
        assert not list(state.chats)


def test_the_command_line_has_its_say() -> None:
    kwargs = '{"mood": "calm"}'
    source = "{{ mood }} {{ reasoning_effort }} {{ enable_thinking }} {{ preserve_thinking }}"
    options = ("--chat-template", source, "--chat-template-kwargs", kwargs, "--reasoning-effort", "high")
    client = served(*options, "--reasoning", "on", "--reasoning-preserve")
    prompt = client.post("/apply-template", json={"messages": HI}).json()["prompt"]
    assert prompt == "calm high True True"
    off = served("--chat-template", source, "--reasoning", "off")
    assert off.post("/apply-template", json={"messages": HI}).json()["prompt"] == "  False "
