"""What requests may say about the form of their answers, on every route that takes it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxserver.engine.task import Task
from mlxserver.sampling.grammar.compiler import GrammarCompiler
from mlxserver.sampling.params import Grammar, Trigger
from tests.api.fake_engine import EOS, TAG, FakeEngine, FakeRun
from tests.api.served import served

YES = 'root ::= "yes"'
SCHEMA = {"type": "boolean"}
BOOLEAN = Grammar("json_schema", '{"type":"boolean"}')
ANSWER = replace(BOOLEAN, kind="json_answer")
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def grammar_of(path: str, body: dict[str, Any], *argv: str) -> Grammar | None:
    engine = FakeEngine([*b"yes", EOS])
    response = served(*argv, engine=engine).post(path, json=body)
    assert response.status_code == 200, response.text
    return engine.runs[0].task.sampling.grammar


def refusal(body: dict[str, Any], path: str = "/completion") -> str:
    engine = FakeEngine("ok")
    response = served(engine=engine).post(path, json={"prompt": "a"} | body)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert engine.runs == []
    return str(response.json()["error"]["message"])


@pytest.mark.parametrize("path", ["/completion", "/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({}, None),
        ({"grammar": YES}, Grammar("gbnf", YES)),
        ({"grammar": ""}, None),
        ({"grammar": None}, None),
        ({"grammar": 5}, None),
        ({"json_schema": SCHEMA}, BOOLEAN),
        ({"json_schema": None}, None),
        ({"json_schema": SCHEMA, "grammar": YES}, Grammar("gbnf", YES)),
        ({"json_schema": SCHEMA, "grammar": None}, None),
        ({"grammar": '%llguidance {}\nstart: "a"'}, Grammar("lark", '%llguidance {}\nstart: "a"')),
    ],
)
def test_text_completions(path: str, body: dict[str, Any], wanted: Grammar | None) -> None:
    assert grammar_of(path, {"prompt": "a"} | body) == wanted


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"grammar": YES}, Grammar("gbnf", YES)),
        ({"json_schema": SCHEMA}, ANSWER),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, ANSWER),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, ANSWER),
        ({"response_format": {"type": "json_object"}}, Grammar("json_schema", "{}")),
        ({"response_format": {"type": "json_object"}, "grammar": YES}, Grammar("gbnf", YES)),
        ({"response_format": {"type": "text"}}, None),
    ],
)
def test_chats(body: dict[str, Any], wanted: Grammar | None) -> None:
    assert grammar_of("/v1/chat/completions", CHAT | body) == wanted


def test_the_command_line_gives_what_a_request_leaves_out(tmp_path: Path) -> None:
    body: dict[str, Any] = {"prompt": "a"}
    grammar, schema = tmp_path / "grammar", tmp_path / "schema"
    grammar.write_text(YES)
    schema.write_text('{"type": "boolean"}')
    assert grammar_of("/completion", body, "--grammar-file", str(grammar)) == Grammar("gbnf", YES)
    assert grammar_of("/completion", body, "--json-schema-file", str(schema)) == BOOLEAN
    assert grammar_of("/completion", body, "--grammar", YES) == Grammar("gbnf", YES)
    assert grammar_of("/completion", body | {"grammar": ""}, "--grammar", YES) == Grammar("gbnf", YES)
    assert grammar_of("/completion", body, "-j", '{"type": "boolean"}') == BOOLEAN
    other = grammar_of("/completion", body | {"json_schema": SCHEMA}, "--grammar", YES)
    assert other == BOOLEAN


@pytest.mark.parametrize(
    ("grammar", "stream"),
    [
        ("root ::= foo", False),
        ("root ::= foo", True),
        ('root ::= "a"{3,1}', False),
        ("%llguidance {}\nstart: x", False),
    ],
)
def test_an_unusable_grammar_is_refused_before_it_starts(grammar: str, stream: bool) -> None:
    message = "Failed to initialize samplers: failed to parse grammar"
    assert refusal({"grammar": grammar, "stream": stream}) == message


def test_an_unusable_schema_is_refused() -> None:
    start = "Field 'json_schema': \"json_schema\": JSON schema conversion failed:\n"
    assert refusal({"json_schema": {"type": "no"}}) == f'{start}Unrecognized schema: {{"type":"no"}}'
    assert refusal({"json_schema": 5}) == f"{start}Unrecognized schema: 5"
    assert refusal({"json_schema": {"$ref": "#/absent"}}).startswith(f"{start}Error resolving ref #/absent")
    message = refusal({"json_schema": {"type": "array", "uniqueItems": True}})
    assert message.endswith('JSON schema conversion failed:\nUnimplemented keys: ["uniqueItems"]')
    message = refusal(CHAT | {"json_schema": {"type": "no"}}, "/v1/chat/completions")
    assert message.endswith('JSON schema conversion failed:\nUnrecognized schema: {"type":"no"}')


def test_a_lazy_grammar_takes_its_triggers() -> None:
    triggers = [{"type": 1, "value": "go"}, {"type": 2, "value": "x+"}, {"type": 1, "value": "<tag>"}]
    body = {"prompt": "a", "grammar": YES, "grammar_lazy": True, "grammar_triggers": triggers}
    wanted = (Trigger("word", "go"), Trigger("pattern", "x+"), Trigger("token", "<tag>", TAG))
    body["preserved_tokens"] = ["<tag>"]
    assert grammar_of("/completion", body) == Grammar("gbnf", YES, True, wanted)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Field 'grammar_triggers': Error: no triggers set for lazy grammar!"),
        ({"grammar_triggers": []}, "Field 'grammar_triggers': Error: no triggers set for lazy grammar!"),
        (
            {"grammar_triggers": [{"type": 9, "value": "a"}]},
            "Field 'grammar_triggers': Unknown grammar trigger type: 9",
        ),
        (
            {"grammar_triggers": [{"type": 2, "value": "("}]},
            "Failed to initialize samplers: invalid trigger pattern: missing ) at position 1",
        ),
    ],
)
def test_a_lazy_grammar_needs_good_triggers(body: dict[str, Any], message: str) -> None:
    assert refusal({"grammar": YES, "grammar_lazy": True} | body) == message


def test_settings_show_the_grammar_that_a_schema_becomes() -> None:
    answer = served().post("/completion", json={"prompt": "a", "json_schema": SCHEMA}).json()
    rules = 'root ::= ("true" | "false")\nspace ::= | " " | "\\n"{1,2} [ \\t]{0,20}\n'
    assert answer["generation_settings"]["grammar"] == rules
    answer = served().post("/completion", json={"prompt": "a", "grammar": YES}).json()
    assert answer["generation_settings"]["grammar"] == YES


def test_grammars_are_compiled_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    check = GrammarCompiler.check

    def watched(self: GrammarCompiler, grammar: Grammar) -> None:
        threads.append(threading.current_thread())
        check(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "check", watched)
    loop: list[threading.Thread] = []
    engine = FakeEngine("ok")
    submit = engine.submit

    def watched_submit(task: Task) -> FakeRun:
        loop.append(threading.current_thread())
        return submit(task)

    monkeypatch.setattr(engine, "submit", watched_submit)
    assert served(engine=engine).post("/completion", json={"prompt": "a", "grammar": YES}).status_code == 200
    assert threads and loop and threads[0] is not loop[0]
