"""Whatever a model draws under a tool grammar is a call of its family that fits the schema."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import jsonschema
import mlx.core as mx
import numpy as np
import pytest
from llguidance import LLMatcher

from mlxserver.chat.answer_deltas import joined
from mlxserver.chat.answer_parser import AnswerRules
from mlxserver.chat.formats.calls import CallFormat, Tools
from mlxserver.chat.formats.registry import FAMILIES, GENERIC
from mlxserver.chat.messages import Message
from mlxserver.chat.reasoning_tags import ReasoningTags
from mlxserver.chat.tool_grammar import Thought, lazy_grammar, required_grammar, with_tools_described
from mlxserver.sampling.grammar.compiler import GrammarCompiler
from mlxserver.sampling.params import SamplingParams
from mlxserver.sampling.sampler import Sampler
from tests.chat.formats.cutting import answer_of, parse
from tests.sampling.byte_tokens import ByteTokens

TOOLS = Tools(
    {
        "light": {
            "type": "object",
            "properties": {
                "room": {"type": "string", "enum": ["Küche", 'a "b"', "</tool_call>"]},
                "level": {"type": "integer", "minimum": 1, "maximum": 5},
                "on": {"type": "boolean"},
                "note": {"type": "string", "minLength": 1, "maxLength": 4},
            },
            "required": ["room", "level"],
        },
        "ping": {"type": "object", "properties": {}},
    }
)
NO_THOUGHT = Thought(ReasoningTags(), "", False)
BEGINNINGS = {"gpt-oss": " to="}
"""Without one, analysis may come first, and a model of no sense never ends it."""
VOCABULARY = ByteTokens()
COMPILER = GrammarCompiler(VOCABULARY)
families = pytest.mark.parametrize("family", (*FAMILIES, GENERIC), ids=lambda family: family.name)


def no_special(text: str) -> int | None:
    return None


def draw(matcher: LLMatcher, seed: int, begin: str = "", limit: int = 20_000) -> str:
    """A text that a model of no sense writes under the grammar, if it has to ``begin`` so."""
    choose, tokens = random.Random(seed), list(begin.encode())
    assert matcher.consume_tokens(tokens)
    while len(tokens) < limit:
        words = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.nonzero(np.unpackbits(words, bitorder="little")[: VOCABULARY.n_vocab])[0]
        token = int(choose.choice(allowed))
        if token in VOCABULARY.eog_ids:
            return b"".join(VOCABULARY.piece(token) for token in tokens).decode()
        assert matcher.consume_token(token)
        tokens.append(token)
    pytest.fail("the text does not end")


def check_calls(calls: CallFormat, text: str, tools: Tools) -> list[str]:
    rules = AnswerRules(calls=calls, tools=tools, skips_space=True)
    answer = answer_of(rules, text)
    assert answer.tool_calls, text
    assert answer.content.strip() == "", text
    for call in answer.tool_calls:
        jsonschema.validate(json.loads(call.arguments), tools.parameters[call.name])
    assert joined(parse(rules, text)) == answer
    return [call.name for call in answer.tool_calls]


@families
def test_required_calls_fit_their_schema(family: Any) -> None:
    grammar = required_grammar(family.calls, TOOLS, NO_THOUGHT, no_special)
    for seed in range(12):
        text = draw(COMPILER.matcher(grammar), seed, BEGINNINGS.get(family.name, ""))
        check_calls(family.calls, text, TOOLS)


@families
def test_one_call_where_they_are_not_parallel(family: Any) -> None:
    tools = replace(TOOLS, is_parallel=False)
    grammar = required_grammar(family.calls, tools, NO_THOUGHT, no_special)
    for seed in range(6):
        text = draw(COMPILER.matcher(grammar), seed, BEGINNINGS.get(family.name, ""))
        assert len(check_calls(family.calls, text, tools)) == 1


@families
def test_a_lazy_grammar_begins_with_the_mark_that_starts_it(family: Any) -> None:
    grammar = lazy_grammar(family.calls, TOOLS, no_special)
    if grammar is None:
        assert not family.calls.opening
        return
    assert grammar.lazy
    matcher = COMPILER.matcher(grammar)
    assert matcher.consume_tokens(list(family.calls.opening.encode()))


@pytest.mark.parametrize(
    ("start", "thinks", "fits", "fits_not"),
    [
        ("", True, ["<think>\nhm\n</think>\n\n{", "{"], ["a"]),
        ("", False, ["{"], ["<think>"]),
        ("<think>\n", True, ["hm</think>{"], []),
        ("<think>\n\n</think>\n\n", True, ["{"], ["<think>"]),
    ],
)
def test_reasoning_comes_before_a_required_call(
    start: str, thinks: bool, fits: list[str], fits_not: list[str]
) -> None:
    thought = Thought(ReasoningTags("<think>\n", "\n</think>\n\n"), start, thinks)
    grammar = required_grammar(GENERIC.calls, TOOLS, thought, no_special)
    for text in fits:
        assert COMPILER.matcher(grammar).consume_tokens(list(text.encode())), text
    for text in fits_not:
        assert not COMPILER.matcher(grammar).consume_tokens(list(text.encode())), text


def test_marks_that_are_special_tokens_are_those_tokens() -> None:
    hermes = next(family for family in FAMILIES if family.name == "hermes")
    grammar = required_grammar(
        hermes.calls, TOOLS, NO_THOUGHT, lambda text: 257 if text == "<tool_call>" else None
    )
    assert COMPILER.matcher(grammar).consume_tokens([257, *b'\n{"name"'])
    assert not COMPILER.matcher(grammar).consume_tokens(list(b"<tool"))


def test_tools_are_described_where_a_template_cannot_show_them() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
    system, user = with_tools_described([Message("user", "x")], [tool])
    assert (system.role, user.role) == ("system", "user")
    assert '{"name": "f", "description": "", "parameters": {}}' in system.content
    first, _ = with_tools_described([Message("system", "Be brief."), Message("user", "x")], [tool])
    assert first.content.startswith("Be brief.\n\nAnswer with a JSON object")


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "mistral-nemo", "generic"])
def test_a_sampler_at_a_high_temperature_makes_calls_that_fit(name: str) -> None:
    """Logits of no sense through the whole chain, several requests in a batch."""
    calls = next(family for family in (*FAMILIES, GENERIC) if family.name == name).calls
    tools = replace(TOOLS, is_parallel=False)
    grammar = required_grammar(calls, tools, NO_THOUGHT, no_special)
    sampler = Sampler(VOCABULARY.n_vocab, VOCABULARY.eog_ids, VOCABULARY)
    texts = {row: b"" for row in range(3)}
    for row in texts:
        sampler.begin(row, SamplingParams(seed=row, temperature=1.5, top_k=0, grammar=grammar), [0])
    running = list(texts)
    for step in range(2000):
        logits = mx.random.normal((len(running), VOCABULARY.n_vocab), key=mx.random.key(step))
        tokens = sampler.sample(logits, running).tokens.tolist()
        for row, token in zip(list(running), tokens, strict=True):
            sampler.accept(row, token)
            if token in VOCABULARY.eog_ids:
                running.remove(row)
            else:
                texts[row] += VOCABULARY.piece(token)
        if not running:
            break
    assert not running
    for text in texts.values():
        check_calls(calls, text.decode(), tools)
