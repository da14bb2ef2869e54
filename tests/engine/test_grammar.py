"""Rows with grammars beside rows without: each by itself, and errors of one are no other's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from mlxserver.engine.task import Failed, Finished
from mlxserver.sampling.params import Grammar, SamplingParams, Trigger
from tests.engine.bench import GREEDY, PROMPTS, Bench, oracle
from tests.models import tiny

EOG = frozenset({0})
DIGITS = Grammar("gbnf", 'root ::= "<" [0-9]{3,40} ">"')
SAMPLED = SamplingParams(temperature=1.5, seed=3, top_k=0, min_p=0.0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(tiny.llama, EOG)
    yield bench
    bench.close()


def constrained(grammar: Grammar, params: SamplingParams = GREEDY) -> SamplingParams:
    return replace(params, grammar=grammar)


def test_a_mixed_batch(bench: Bench) -> None:
    plain = oracle(tiny.llama(), PROMPTS[0], 30)
    bench.submit(0, PROMPTS[0], n_predict=30)
    bench.submit(1, PROMPTS[1], sampling=constrained(DIGITS), n_predict=60)
    bench.submit(2, PROMPTS[2], sampling=constrained(DIGITS, SAMPLED), n_predict=60)
    schema = Grammar("json_schema", '{"type":"array","items":{"type":"boolean"},"maxItems":3}')
    bench.submit(3, PROMPTS[3], sampling=constrained(schema, SAMPLED), n_predict=200)
    texts = bench.finish(0, 1, 2, 3)
    assert texts[0] == (plain[: plain.index(0) + 1] if 0 in plain else plain)
    for text in texts[1:3]:
        inside = bytes(text).rstrip(b"\0")
        assert inside[:1] == b"<" and inside[1:].rstrip(b">").isdigit()
        assert text[-1] == 0 or len(text) == 60
    assert bytes(texts[3]).rstrip(b"\0").startswith(b"[")


def test_a_row_gets_the_same_alone_and_in_company(bench: Bench) -> None:
    bench.submit(0, PROMPTS[1], sampling=constrained(DIGITS, SAMPLED), n_predict=30)
    alone = bench.finish(0)[0]
    for task in (1, 2):
        bench.submit(task, PROMPTS[task + 1], n_predict=40)
    bench.submit(3, PROMPTS[1], sampling=constrained(DIGITS, SAMPLED), n_predict=30)
    assert bench.finish(1, 2, 3)[2] == alone


def test_a_complete_text_ends_the_task(bench: Bench) -> None:
    bench.submit(0, PROMPTS[0], sampling=constrained(Grammar("gbnf", 'root ::= "ab"')), n_predict=50)
    assert bench.finish(0) == [[*b"ab", 0]]
    assert bench.of(0, Finished)


def test_a_grammar_that_cannot_go_on_fails_its_own_task(bench: Bench) -> None:
    """The trigger is any text at all, so that what was generated does not fit the grammar."""
    late = Grammar("gbnf", 'root ::= "zz"', lazy=True, triggers=(Trigger("pattern", r"^[^z]"),))
    bench.submit(0, PROMPTS[0], sampling=constrained(late), n_predict=20)
    bench.submit(1, PROMPTS[1], n_predict=20)
    bench.finish(0, 1)
    (failure,) = bench.of(0, Failed)
    assert failure.type == "server_error"
    assert failure.message.startswith("got exception: Unexpected empty grammar stack after accepting piece: ")
    assert bench.of(1, Finished)


def test_an_unusable_grammar_fails_its_own_task(bench: Bench) -> None:
    bench.submit(0, PROMPTS[0], sampling=constrained(Grammar("gbnf", "root ::= x")), n_predict=5)
    bench.submit(1, PROMPTS[1], n_predict=5)
    bench.finish(0, 1)
    (failure,) = bench.of(0, Failed)
    assert failure.message == "Failed to initialize samplers: failed to parse grammar"
    assert bench.of(1, Finished)
