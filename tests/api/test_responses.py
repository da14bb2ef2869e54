"""/v1/responses over a scripted engine, and its events for every kind of answer."""

from __future__ import annotations

import json
from typing import Any

from mlxserver.api.responses_json import ResponsesDialect
from mlxserver.chat.answer_parser import AnswerRules
from mlxserver.chat.formats.json_calls import JsonCalls
from mlxserver.chat.reasoning_tags import ReasoningTags
from mlxserver.engine.task import Failed
from tests.api.client import events as data_of
from tests.api.fake_engine import EOS, FakeEngine
from tests.api.served import served
from tests.api.updates import TIMINGS, delta, played, result

PATH = "/v1/responses"
RULES = AnswerRules(tags=ReasoningTags("<think>", "</think>"), calls=JsonCalls("<call>", "</call>"))
CALL = '<call>{"name": "f", "arguments": {"a": 1}}</call>'


def ask(*script: Any, **body: Any) -> Any:
    return served(engine=FakeEngine(*script)).post(PATH, json={"input": "hi"} | body)


def dialect() -> ResponsesDialect:
    return ResponsesDialect(RULES, "m")


def names(events: list[Any]) -> list[str]:
    return [event.name.removeprefix("response.") for event in events]


def test_a_plain_answer() -> None:
    answer = ask([*b"ok", EOS]).json()
    assert list(answer) == [
        "completed_at",
        "created_at",
        "id",
        "model",
        "object",
        "output",
        "status",
        "usage",
    ]
    [message] = answer["output"]
    assert message["content"] == [{"type": "output_text", "annotations": [], "logprobs": [], "text": "ok"}]
    assert answer["id"].startswith("resp_") and message["id"].startswith("msg_")
    assert (answer["object"], answer["status"]) == ("response", "completed")
    assert answer["usage"]["output_tokens"] == 3


def test_both_paths_answer() -> None:
    assert served().post("/responses", json={"input": "a"}).status_code == 200


def test_usage_tells_what_was_reused() -> None:
    assert dialect().answer([result("ok")])["usage"] == {
        "input_tokens": 7,
        "output_tokens": 3,
        "total_tokens": 10,
        "input_tokens_details": {"cached_tokens": 2},
    }


def test_a_limit_is_not_told() -> None:
    assert ask("abcdef", max_output_tokens=2).json()["status"] == "completed"


def test_a_stream_has_names_and_no_done() -> None:
    response = ask([*b"ok", EOS], stream=True)
    data = data_of(response)
    named = [line.removeprefix("event: ") for line in response.text.split("\n") if line.startswith("event:")]
    assert named == [event["type"] for event in data]
    assert [name.removeprefix("response.") for name in named] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    completed = data[-1]
    assert completed["response"]["output"] == [data[-2]["item"]]
    assert completed["response"]["id"] == data[0]["response"]["id"]
    assert "timings" in completed
    assert {event["item_id"] for event in data if "item_id" in event} == {data[2]["item"]["id"]}


def test_the_start_is_told_once_even_where_the_first_token_is_half_a_character() -> None:
    data = data_of(ask([*"é".encode(), *b"!", EOS], stream=True))
    assert [event["type"] for event in data].count("response.created") == 1


def test_progress_and_timings_stand_in_the_last_event_of_an_update() -> None:
    data = data_of(ask([*b"o", EOS], stream=True, return_progress=True, timings_per_token=True))
    progress = [event for event in data if "prompt_progress" in event]
    assert {event["type"] for event in progress} == {"response.in_progress"}
    assert data[0]["type"] == "response.created"
    assert progress[-1]["prompt_progress"]["processed"] == progress[-1]["prompt_progress"]["total"]
    assert [event["type"] for event in data if "timings" in event][-2:] == [
        "response.output_text.delta",
        "response.completed",
    ]


class TestItems:
    def test_plain(self) -> None:
        thought, message, call = dialect().answer([result(f"<think>hm</think>ok{CALL}")])["output"]
        assert thought == {
            "id": thought["id"],
            "summary": [],
            "type": "reasoning",
            "content": [{"text": "hm", "type": "reasoning_text"}],
            "encrypted_content": "",
            "status": "completed",
        }
        assert message["content"][0]["text"] == "ok"
        assert (call["type"], call["name"], call["status"]) == ("function_call", "f", "completed")
        assert json.loads(call["arguments"]) == {"a": 1}
        assert call["id"].removeprefix("fc_") == call["call_id"].removeprefix("call_")

    def test_streamed(self) -> None:
        events = played(dialect(), "<think>hm", "</think>ok", CALL)
        assert names(events) == [
            "created",
            "in_progress",
            "output_item.added",
            "reasoning_text.delta",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_item.added",
            "function_call_arguments.delta",
            "output_item.done",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.done",
            "completed",
        ]
        items = [event.data["item"] for event in events if event.name == "response.output_item.added"]
        assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
        assert {item["status"] for item in items} == {"in_progress"}
        done = [event.data["item"] for event in events if event.name == "response.output_item.done"]
        assert done == events[-1].data["response"]["output"]
        assert [item["id"] for item in done] == [item["id"] for item in items]
        assert "status" not in done[0]
        assert events[8].data["item_id"] == items[2]["id"]

    def test_none_of_an_empty_answer(self) -> None:
        assert dialect().answer([result("")])["output"] == []
        assert names(played(dialect(), "")) == ["created", "in_progress", "completed"]
        assert names(played(dialect())) == ["created", "in_progress", "completed"]


def test_what_was_held_back_to_the_end_is_a_delta_too() -> None:
    events = played(dialect(), "a", "<ca")
    text = "".join(event.data["delta"] for event in events if event.name == "response.output_text.delta")
    [done] = [event.data["text"] for event in events if event.name == "response.output_text.done"]
    assert text == done == "a<ca"


def test_the_token_that_completes_a_stop_string_brings_timings() -> None:
    events = dialect().events(delta("", timings=TIMINGS))
    assert "timings" not in events[0].data and "timings" in events[1].data


def test_several_completions_are_several_responses() -> None:
    answers = ask([*b"ok", EOS], n=2).json()
    assert len({answer["id"] for answer in answers}) == 2
    data = data_of(ask([*b"ok", EOS], n=2, stream=True))
    completed = [event for event in data if event["type"] == "response.completed"]
    assert [event["response"]["output"][0]["content"][0]["text"] for event in completed] == ["ok", "ok"]


class TestErrors:
    def test_before_the_stream(self) -> None:
        response = ask("ok", stream=True, input=4)
        assert (response.status_code, response.headers["content-type"][:16]) == (400, "application/json")
        assert ask("ok", max_output_tokens=-2).json()["error"]["message"].startswith("Field 'max_tokens'")
        image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        response = ask("ok", input=[{"role": "user", "content": [image]}])
        assert response.json()["error"]["message"].startswith("image input is not supported")

    def test_in_a_stream(self) -> None:
        engine = FakeEngine("ok")
        client = served(engine=engine)
        failed = Failed(0, "server_error", "broken")
        submit = engine.submit

        def failing(task: Any) -> Any:
            run = submit(task)
            run.script, run.failure = [ord("o")], failed
            return run

        engine.submit = failing  # type: ignore[method-assign]
        data = data_of(client.post(PATH, json={"input": "hi", "stream": True}))
        error = {"code": 500, "message": "broken", "type": "server_error"}
        assert data[-1] == {"error": error}


def test_tokens_are_counted() -> None:
    client = served()
    wanted = client.post(
        "/v1/chat/completions/input_tokens", json={"messages": [{"role": "user", "content": "hi"}]}
    ).json()
    for path in ("/responses/input_tokens", "/v1/responses/input_tokens"):
        assert client.post(path, json={"input": "hi"}).json() == wanted
