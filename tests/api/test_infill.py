"""/infill: the prompt that prefix, suffix and further files become, its errors and its answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlxserver.api.infill import Room, infill_prompt
from tests.api.client import events
from tests.api.fake_engine import BOS, EOS, ByteTokenizer, FakeEngine
from tests.api.served import client_of, served, served_state

PRE, SUF, MID, REP, SEP = range(270, 275)
WIDE = Room(n_batch=2048, n_ctx=8192, n_predict=-1)


class CodeTokenizer(ByteTokenizer):
    """Has the tokens of fill-in-the-middle, but none for repositories."""

    fim_pre, fim_suf, fim_mid = PRE, SUF, MID


class RepositoryTokenizer(CodeTokenizer):
    fim_rep, fim_sep = REP, SEP


class WithoutBos(CodeTokenizer):
    add_bos = False


def prompt(
    prefix: str = "ab",
    suffix: str = "cd",
    started: str = "",
    files: tuple[tuple[str, str], ...] = (),
    room: Room = WIDE,
    suffix_first: bool = False,
    tokenizer: ByteTokenizer | None = None,
) -> list[int]:
    parts = (list(prefix.encode()), list(suffix.encode()), list(started.encode()))
    return infill_prompt(tokenizer or CodeTokenizer(), *parts, list(files), room, suffix_first)


def test_prefix_suffix_and_the_middle_that_is_to_come() -> None:
    assert prompt() == [BOS, PRE, *b"ab", SUF, *b"cd", MID]
    assert prompt("", "") == [BOS, PRE, SUF, MID]
    assert prompt(tokenizer=WithoutBos()) == [PRE, *b"ab", SUF, *b"cd", MID]


def test_a_middle_that_has_begun_follows_the_prefix() -> None:
    assert prompt(started="xy") == [BOS, PRE, *b"abxy", SUF, *b"cd", MID]


def test_the_suffix_may_come_first() -> None:
    assert prompt(started="x", suffix_first=True) == [BOS, SUF, *b"cd", PRE, *b"abx", MID]


def test_files_of_a_model_without_a_token_for_them() -> None:
    snippet = b"\n\n--- snippet ---\n\n"
    found = prompt(files=(("a.py", "one"), ("b.py", "two")))
    assert found == [*snippet, *b"one", *snippet, *b"two", BOS, PRE, *b"ab", SUF, *b"cd", MID]


def test_files_in_the_repository_form() -> None:
    found = prompt(files=(("a.py", "one"),), tokenizer=RepositoryTokenizer())
    repository = [REP, *b"myproject\n", SEP, *b"a.py\n", *b"one", SEP, *b"filename\n"]
    assert found == [*repository, BOS, PRE, *b"ab", SUF, *b"cd", MID]


def test_a_batch_holds_three_parts_of_the_prefix_and_one_of_the_suffix() -> None:
    room = replace(WIDE, n_batch=16)
    found = prompt("x" * 8 + "y" * 12, "s" * 2 + "t" * 9, room=room)
    assert found == [BOS, PRE, *b"y" * 12, SUF, *b"s" * 2, MID]
    assert prompt("", "stu", started="m", room=room) == [BOS, PRE, *b"m", SUF, *b"s", MID]
    assert prompt("", "stu", started="m" * 9, room=room) == [BOS, PRE, *b"m" * 9, SUF, MID]


def test_files_get_what_the_context_has_left() -> None:
    room = Room(n_batch=16, n_ctx=30, n_predict=5)
    assert prompt(files=(("a", "0123456789"),), room=room)[:5] == [*b"6789", BOS]
    assert prompt(files=(("a", "0123456789"),), room=replace(room, n_predict=-1))[:17][-2:] == [ord("9"), BOS]
    assert prompt(files=(("a", "0123456789"),), room=replace(room, n_predict=50))[0] == BOS


def ask(argv: tuple[str, ...] = (), **body: Any) -> tuple[Any, FakeEngine]:
    engine = FakeEngine([*b"ok", EOS])
    state = served_state(*argv, engine=engine)
    assert state.ready is not None
    model = replace(state.ready.model, tokenizer=CodeTokenizer())
    state.ready = replace(state.ready, model=model)
    return client_of(state).post("/infill", json=body), engine


def sent(*argv: str, **body: Any) -> tuple[int, ...]:
    response, engine = ask(argv, **body)
    assert response.status_code == 200, response.text
    return engine.runs[0].task.tokens


def test_an_answer_is_a_native_completion() -> None:
    response, engine = ask(input_prefix="ab", input_suffix="cd", n_predict=7)
    answer = response.json()
    assert (answer["content"], answer["stop_type"], answer["tokens_evaluated"]) == ("ok", "eos", 8)
    assert engine.runs[0].task.tokens == (BOS, PRE, *b"ab", SUF, *b"cd", MID)
    assert engine.runs[0].task.n_predict == 7


def test_a_stream_is_a_native_one() -> None:
    chunks = events(ask(input_prefix="ab", input_suffix="cd", stream=True)[0])
    assert "".join(chunk["content"] for chunk in chunks) == "ok"
    assert chunks[-1]["stop"] is True


def test_texts_are_plain_but_a_begun_middle_may_hold_special_tokens() -> None:
    assert sent(input_prefix="<s>", input_suffix="") == (BOS, PRE, *b"<s>", SUF, MID)
    assert sent(input_prefix="", input_suffix="", prompt="<s>") == (BOS, PRE, BOS, SUF, MID)
    assert sent(input_prefix=["a", 5], input_suffix="") == (BOS, PRE, *b"a", 5, SUF, MID)


def test_a_prompt_that_is_no_text_is_left_out() -> None:
    assert sent(input_prefix="", input_suffix="", prompt=[5]) == (BOS, PRE, SUF, MID)


def test_the_command_line_sets_order_and_room() -> None:
    assert sent("--spm-infill", input_prefix="a", input_suffix="b") == (BOS, SUF, *b"b", PRE, *b"a", MID)
    assert sent("-b", "8", input_prefix="abcdefgh", input_suffix="b") == (BOS, PRE, *b"cdefgh", SUF, MID)


def test_files_may_be_unnamed() -> None:
    extra = [{"text": "x"}, {"text": "y", "filename": "b"}]
    tokens = sent(input_prefix="", input_suffix="", input_extra=extra, n_predict=1)
    assert len(tokens) == 4  # the context of 512 has nothing left beside a batch of 2048
    assert bytes(sent("-b", "64", input_prefix="", input_suffix="", input_extra=extra)[:-4]).endswith(b"y")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"input_extra": {"text": "x"}}, 400, '"input_extra" must be an array of {'),
        ({"input_extra": None}, 400, '"input_extra" must be an array of {'),
        ({"input_extra": [{"filename": "x"}]}, 400, 'extra_context chunk must contain a "text" field'),
        ({"input_extra": [5]}, 400, 'extra_context chunk must contain a "text" field'),
        ({"input_extra": [{"text": "x", "filename": 5}]}, 400, 'extra_context chunk\'s "filename" field'),
        ({"input_prefix": 5}, 500, "[json.exception.type_error.302] type must be string, but is number"),
        ({"input_prefix": [None]}, 500, "[json.exception.type_error.302]"),
        ({"n_predict": -5}, 400, "Field 'n_predict': "),
        ({"input_prefix": [4000]}, 400, "Prompt contains invalid tokens"),
    ],
)
def test_errors(body: dict[str, Any], status: int, message: str) -> None:
    response, _ = ask(**{"input_prefix": "a", "input_suffix": "b", **body})
    assert response.status_code == status
    assert response.json()["error"]["message"].startswith(message)


def test_prefix_and_suffix_are_required() -> None:
    for body in ({"input_prefix": "a"}, {"input_suffix": "a"}):
        response, _ = ask(**body)
        assert response.status_code == 500
        assert response.json()["error"]["message"].startswith("[json.exception.out_of_range.403] key 'input_")


def test_a_body_that_is_no_object() -> None:
    state = served_state()
    assert state.ready is not None
    state.ready = replace(state.ready, model=replace(state.ready.model, tokenizer=CodeTokenizer()))
    assert client_of(state).post("/infill", json=[1]).status_code == 500


def test_a_model_without_the_tokens_says_which() -> None:
    response = served().post("/infill", json={})
    missing = "prefix token is missing. suffix token is missing. middle token is missing. "
    error = {"code": 501, "message": f"Infill is not supported by this model: {missing}"}
    assert response.json()["error"] == error | {"type": "not_supported_error"}
