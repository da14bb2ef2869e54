"""The same case as a request of every API that can ask for it, and the texts in its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.load.cases import Case
from tests.load.http import ask, events

Body = dict[str, Any]


@dataclass
class Answer:
    """What one choice of an answer has; ``tokens`` and ``probs`` where the API tells them.

    ``probs``: the id and the log-probability of each candidate told, position by position.
    """

    text: str = ""
    tokens: tuple[int, ...] | None = None
    probs: list[list[tuple[int, float]]] | None = None


@dataclass(frozen=True)
class Dialect:
    """``whole`` and ``streamed`` read the answer; ``takes``: which of a case's extra fields it has."""

    path: str
    is_chat: bool
    body: Callable[[Body], Body]
    whole: Callable[[Any], list[Answer]]
    streamed: Callable[[list[Any]], list[Answer]]
    n_field: str = ""
    takes: frozenset[str] | None = None

    def can(self, case: Case) -> bool:
        return self.is_chat == case.is_chat and (self.takes is None or case.extra <= self.takes)


def asked(url: str, dialect: Dialect, body: Body) -> list[Answer]:
    if body.get("stream"):
        return dialect.streamed(events(url, dialect.path, body))
    return dialect.whole(ask(url, dialect.path, body))


# ---------------------------------------------------------------------- native


def _native(answer: Any) -> list[Answer]:
    answers = answer if isinstance(answer, list) else [answer]
    return [_native_choice(each) for each in sorted(answers, key=lambda each: int(each["index"]))]


def _native_choice(choice: Any) -> Answer:
    timings = choice["timings"]
    if timings["cache_n"] + timings["prompt_n"] != choice["tokens_evaluated"]:
        raise ValueError(f"the counts of a prompt do not add up: {timings}, {choice['tokens_evaluated']}")
    return Answer(choice["content"], tuple(choice["tokens"]), _probs(choice.get("completion_probabilities")))


def _native_stream(told: list[Any]) -> list[Answer]:
    answers: dict[int, Answer] = {}
    for event in told:
        answer = answers.setdefault(event["index"], Answer(tokens=()))
        answer.text += event["content"]
        answer.tokens = (*(answer.tokens or ()), *event["tokens"])
        if found := _probs(event.get("completion_probabilities")):
            answer.probs = (answer.probs or []) + found
    return [answers[i] for i in sorted(answers)]


def _probs(told: Any) -> list[list[tuple[int, float]]] | None:
    if told is None:
        return None
    return [[(each["id"], each["logprob"]) for each in (at, *at["top_logprobs"])] for at in told]


# ---------------------------------------------------------------------- OpenAI


def _choices(answer: Any) -> list[Answer]:
    found = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
    return [Answer(choice["text"] if "text" in choice else choice["message"]["content"]) for choice in found]


def _choices_stream(told: list[Any]) -> list[Answer]:
    answers: dict[int, Answer] = {}
    for choice in (choice for event in told for choice in event["choices"]):
        answer = answers.setdefault(choice["index"], Answer())
        answer.text += (choice["text"] if "text" in choice else choice["delta"].get("content")) or ""
    return [answers[i] for i in sorted(answers)]


def _responses_body(body: Body) -> Body:
    kept = {name: value for name, value in body.items() if name not in ("messages", "max_tokens")}
    items = [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": turn["content"]}],
        }
        if turn["role"] == "assistant"
        else turn
        for turn in body["messages"]
    ]
    return kept | {"input": items, "max_output_tokens": body["max_tokens"]}


def _output(answer: Any) -> list[Answer]:
    parts = [part for item in answer["output"] for part in item["content"]]
    return [Answer("".join(part["text"] for part in parts))]


def _output_stream(told: list[Any]) -> list[Answer]:
    deltas = [event["delta"] for event in told if event["type"] == "response.output_text.delta"]
    return [Answer("".join(deltas))]


# ---------------------------------------------------------------------- Anthropic


def _anthropic_body(body: Body) -> Body:
    made = dict(body)
    turns = list(made["messages"])
    if turns[0]["role"] == "system":
        made["system"] = turns.pop(0)["content"]
    if "stop" in made:
        made["stop_sequences"] = made.pop("stop")
    return made | {"messages": turns, "model": "any"}


def _blocks(answer: Any) -> list[Answer]:
    return [Answer("".join(block["text"] for block in answer["content"]))]


def _blocks_stream(told: list[Any]) -> list[Answer]:
    deltas = [event["delta"]["text"] for event in told if event["type"] == "content_block_delta"]
    return [Answer("".join(deltas))]


def _as_it_is(body: Body) -> Body:
    return body


NATIVE = Dialect(
    "/completion", False, lambda b: b | {"return_tokens": True}, _native, _native_stream, "n_cmpl"
)
CHAT = Dialect("/v1/chat/completions", True, _as_it_is, _choices, _choices_stream, "n")
DIALECTS: Mapping[str, Dialect] = {
    "native": NATIVE,
    "OpenAI completions": Dialect("/v1/completions", False, _as_it_is, _choices, _choices_stream, "n"),
    "OpenAI chats": CHAT,
    "OpenAI responses": Dialect(
        "/v1/responses", True, _responses_body, _output, _output_stream, takes=frozenset(["grammar", "stop"])
    ),
    "Anthropic": Dialect(
        "/v1/messages", True, _anthropic_body, _blocks, _blocks_stream, takes=frozenset(["stop"])
    ),
}
