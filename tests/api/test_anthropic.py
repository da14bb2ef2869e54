"""/v1/messages over a scripted engine, and its events for every kind of answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlxserver.api.anthropic_json import AnthropicDialect
from mlxserver.api.errors import server_error
from mlxserver.chat.answer_parser import AnswerRules
from mlxserver.chat.formats.json_calls import JsonCalls
from mlxserver.chat.reasoning_tags import ReasoningTags
from mlxserver.engine.task import Failed
from tests.api.fake_engine import EOS, FakeEngine
from tests.api.served import served
from tests.api.updates import delta, played, result

HI = [{"role": "user", "content": "hi"}]
PATH = "/v1/messages"
RULES = AnswerRules(tags=ReasoningTags("<think>", "</think>"), calls=JsonCalls("<call>", "</call>"))
CALL = '<call>{"name": "f", "arguments": {"a": 1}}</call>'


def ask(*script: Any, **body: Any) -> Any:
    return served(engine=FakeEngine(*script)).post(PATH, json={"messages": HI} | body)


def named_events(response: Any) -> list[tuple[str, Any]]:
    pairs = [block.split("\n") for block in response.text.split("\n\n") if block]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


def dialect(*stops: str, rules: AnswerRules = RULES) -> AnthropicDialect:
    return AnthropicDialect(rules, "m", stops)


def kinds(events: list[Any]) -> list[Any]:
    """Name and index of each event."""
    return [(event.name.removeprefix("content_"), event.data.get("index")) for event in events]


def test_a_plain_answer() -> None:
    answer = ask([*b"ok", EOS]).json()
    assert list(answer) == [
        "id",
        "type",
        "role",
        "content",
        "model",
        "stop_reason",
        "stop_sequence",
        "usage",
    ]
    assert answer["content"] == [{"type": "text", "text": "ok"}]
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "end_turn")
    assert answer["usage"]["output_tokens"] == 3


def test_a_stream() -> None:
    response = ask([*b"ok", EOS], stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = named_events(response)
    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert all(data["type"] == name for name, data in events)
    start = events[0][1]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert "".join(data["delta"]["text"] for _, data in events[2:4]) == "ok"
    assert events[5][1]["usage"] == {"output_tokens": 3}


def test_a_message_begins_even_where_the_first_token_is_half_a_character() -> None:
    events = named_events(ask([*"é".encode(), EOS], stream=True))
    assert events[0][0] == "message_start"
    assert events[2][1]["delta"] == {"type": "text_delta", "text": "é"}


def test_input_tokens_do_not_count_what_was_reused() -> None:
    usage = dialect().answer([result("ok")])["usage"]
    assert usage == {"cache_read_input_tokens": 2, "input_tokens": 5, "output_tokens": 3}
    [start, *_] = dialect().events(delta("ok"))
    assert start.data["message"]["usage"] == usage | {"output_tokens": 0}


@pytest.mark.parametrize(
    ("end", "reason", "word"),
    [
        ({"stop_type": "limit"}, "max_tokens", None),
        ({"stop_type": "eos"}, "end_turn", None),
        ({"stop_type": "word", "stopping_word": "X"}, "stop_sequence", "X"),
        ({"stop_type": "word", "stopping_word": "<|im_end|>"}, "end_turn", "<|im_end|>"),
    ],
)
def test_why_it_ended(end: dict[str, Any], reason: str, word: str | None) -> None:
    answer = dialect("X").answer([result("ok", **end)])
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, word)
    told = played(dialect("X"), "ok", **end)[-2].data["delta"]
    assert told == {"stop_reason": reason, "stop_sequence": word}


def test_a_stop_sequence_of_the_client_is_told() -> None:
    answer = ask("abXc", stop_sequences=["X"]).json()
    assert (answer["content"][0]["text"], answer["stop_reason"], answer["stop_sequence"]) == (
        "ab",
        "stop_sequence",
        "X",
    )


def test_a_stop_string_of_the_command_line_is_a_turns_end() -> None:
    answer = served("-r", "X", engine=FakeEngine("abXc")).post(PATH, json={"messages": HI}).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", "X")


class TestBlocks:
    def test_plain(self) -> None:
        answer = dialect().answer([result(f"<think>hm</think>ok{CALL}")])
        call_id = answer["content"][2]["id"]
        assert answer["content"] == [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "ok"},
            {"type": "tool_use", "id": call_id, "name": "f", "input": {"a": 1}},
        ]
        assert (answer["stop_reason"], bool(call_id)) == ("tool_use", True)

    def test_streamed_they_end_together(self) -> None:
        events = played(dialect(), "<think>hm", "</think>ok", CALL)
        assert kinds(events) == [
            ("message_start", None),
            ("block_start", 0),
            ("block_delta", 0),
            ("block_start", 1),
            ("block_delta", 1),
            ("block_start", 2),
            ("block_delta", 2),
            ("block_delta", 0),
            ("block_stop", 0),
            ("block_stop", 1),
            ("block_stop", 2),
            ("message_delta", None),
            ("message_stop", None),
        ]
        assert events[7].data["delta"] == {"type": "signature_delta", "signature": ""}
        assert events[6].data["delta"] == {"type": "input_json_delta", "partial_json": '{"a": 1}'}
        opened = events[5].data["content_block"]
        assert list(opened) == ["type", "id", "name"]
        assert events[-2].data["delta"]["stop_reason"] == "tool_use"

    def test_pieces_of_arguments_joined_are_the_arguments(self) -> None:
        events = played(dialect(), *CALL, *CALL)
        parts: dict[int, str] = {0: "", 1: ""}
        for event in events:
            if event.name == "content_block_delta":
                parts[event.data["index"]] += event.data["delta"]["partial_json"]
        assert [json.loads(part) for part in parts.values()] == [{"a": 1}, {"a": 1}]

    def test_arguments_that_were_cut_are_none(self) -> None:
        answer = dialect().answer([result(CALL[:34], stop_type="limit")])
        assert answer["content"][0]["input"] == {}
        assert answer["stop_reason"] == "max_tokens"

    def test_nothing_at_all(self) -> None:
        assert dialect().answer([result("")])["content"] == []
        assert [event.name for event in played(dialect(), "")] == [
            "message_start",
            "message_delta",
            "message_stop",
        ]
        assert [event.name for event in played(dialect())][0] == "message_start"

    def test_an_answer_that_goes_on_repeats_its_beginning(self) -> None:
        messages = [*HI, {"role": "assistant", "content": "The "}]
        assert ask([*b"ok", EOS], messages=messages).json()["content"][0]["text"] == "The ok"
        events = named_events(ask([*b"ok", EOS], messages=messages, stream=True))
        assert events[2][1]["delta"]["text"] == "The o"


class TestErrors:
    @pytest.mark.parametrize(
        ("body", "status", "message"),
        [
            ({"messages": [{"content": "x"}]}, 500, "Failed to parse messages: Missing 'role'"),
            ({"messages": [{"role": "user"}]}, 400, "All non-assistant messages must contain 'content'"),
            ({"messages": [5]}, 400, "All non-assistant messages must contain 'content'"),
            ({"max_tokens": -2}, 400, "Field 'max_tokens': Value must be between -1"),
            ({"stop_sequences": [5]}, 400, "Field 'stop': [json.exception.type_error.302]"),
            ({"stream": "yes"}, 400, "Field 'stream': "),
        ],
    )
    def test_before_the_stream(self, body: dict[str, Any], status: int, message: str) -> None:
        response = ask("ok", **body)
        assert response.status_code == status
        assert response.json()["error"]["message"].startswith(message)

    @pytest.mark.parametrize("kind", ["base64", "url", "file"])
    def test_images_are_refused_by_name(self, kind: str) -> None:
        image = {"type": "image", "source": {"type": kind}}
        response = ask("ok", messages=[{"role": "user", "content": [image]}])
        assert response.status_code == 500
        assert response.json()["error"]["message"].startswith("image input is not supported")

    def test_in_a_stream_the_event_holds_the_error_itself(self) -> None:
        event = dialect().error(server_error("broken"))
        assert (event.name, event.data) == (
            "error",
            {"code": 500, "message": "broken", "type": "server_error"},
        )

    def test_before_the_first_token_it_is_no_stream(self) -> None:
        response = ask(Failed(0, "server_error", "broken"), stream=True)
        assert (response.status_code, response.json()["error"]["message"]) == (500, "broken")


def test_tokens_are_counted() -> None:
    client = served()
    plain = client.post(f"{PATH}/count_tokens", json={"messages": HI})
    chat = client.post("/v1/chat/completions/input_tokens", json={"messages": HI}).json()
    assert plain.json() == {"input_tokens": chat["input_tokens"]}
    assert client.post(f"{PATH}/count_tokens", json={}).status_code == 500
