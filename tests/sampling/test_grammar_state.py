"""Rows that follow a grammar: lazy starts, what is sampled and reported, how a text ends."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import mlx.core as mx
import numpy as np
import pytest

from mlxserver.sampling.grammar.compiler import GrammarCompiler, compiler_of
from mlxserver.sampling.grammar.state import GrammarState
from mlxserver.sampling.params import Grammar, SamplerError, SamplingParams, Trigger
from mlxserver.sampling.sampler import Sampler
from tests.sampling.byte_tokens import ByteTokens

TOKENS = ByteTokens()
COMPILER = GrammarCompiler(TOKENS)
GREEDY = SamplingParams(temperature=0)
WIDTH = TOKENS.n_vocab + 30
"""Logits may be wider than the vocabulary."""


def lazy_state(root: str, *triggers: Trigger) -> GrammarState:
    grammar = Grammar("gbnf", f"root ::= {root}", lazy=True, triggers=triggers)
    return GrammarState(grammar, COMPILER.matcher(grammar), COMPILER.tokenizer, TOKENS)


def allowed(state: GrammarState) -> set[int]:
    mask = np.zeros(20, dtype=np.int32)
    state.fill(mask)
    return set(np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[0].tolist())


def feed(state: GrammarState, *tokens: int) -> GrammarState:
    for token in tokens:
        state.accept(token)
    return state


def token(text: str) -> int:
    return TOKENS.texts.index(text.encode())


def test_a_word_starts_a_lazy_grammar() -> None:
    state = lazy_state('"go" "!"', Trigger("word", "go"))
    assert not feed(state, *b"x g").is_active
    assert allowed(feed(state, *b"o")) == {ord("!")}
    assert feed(state, ord("!")).is_done


def test_only_a_part_of_the_first_token_may_belong_to_it() -> None:
    state = lazy_state('"b" "!"', Trigger("word", "b"))
    assert allowed(feed(state, token("ab"))) == {ord("!")}


def test_a_token_starts_a_lazy_grammar() -> None:
    state = lazy_state('"<call>" "!"', Trigger("token", "<call>", token("<call>")))
    assert not feed(state, *b"<call>").is_active
    assert allowed(feed(state, token("<call>"))) == {ord("!")}


@pytest.mark.parametrize(
    ("trigger", "text", "starts"),
    [
        (Trigger("pattern", "x(y+)"), b"axyy", False),
        (Trigger("pattern", "x(y)(z)?"), b"axy", True),
        (Trigger("pattern", "q|(y)"), b"xy", True),
        (Trigger("pattern_full", "x(y)"), b"axy", False),
        (Trigger("pattern_full", "ax(y)"), b"axy", True),
        (Trigger("pattern_full", "^[\\s\\S]*(y)$"), b"a\nxy", True),
        (Trigger("word", "(y)"), b"axy", False),
    ],
)
def test_patterns_start_it_at_their_first_group(trigger: Trigger, text: bytes, starts: bool) -> None:
    state = feed(lazy_state('"y" "!"', trigger), *text)
    if starts:
        assert allowed(state) == {ord("!")}
    else:
        assert not state.is_active or pytest.raises(SamplerError, state.check)


def test_patterns_that_are_none_are_refused() -> None:
    with pytest.raises(SamplerError, match="invalid trigger pattern"):
        COMPILER.check(Grammar("gbnf", 'root ::= "a"', lazy=True, triggers=(Trigger("pattern", "("),)))


def test_a_pattern_cannot_take_for_ever() -> None:
    state = lazy_state('"b"', Trigger("pattern", "(?:a|aa)+b"))
    feed(state, *b"a" * 60, *b"!")
    with pytest.raises(SamplerError, match="takes too long"):
        state.check()


def test_what_does_not_fit_is_told_and_stays_told() -> None:
    state = feed(lazy_state('"zz"', Trigger("word", "a")), ord("a"), ord("z"))
    with pytest.raises(
        SamplerError, match=r"^Unexpected empty grammar stack after accepting piece: a \(97\)$"
    ):
        state.check()


def test_compiled_grammars_are_kept_but_not_without_end() -> None:
    compiler = GrammarCompiler(TOKENS)
    first = Grammar("gbnf", 'root ::= "a"')
    assert compiler.matcher(first) is not compiler.matcher(first)
    for number in range(300):
        compiler.check(Grammar("gbnf", f'root ::= "{number}"'))
    assert len(compiler._ready) == 256
    assert (first.kind, first.text) not in compiler._ready


def test_a_vocabulary_has_one_compiler() -> None:
    assert compiler_of(TOKENS) is compiler_of(TOKENS) is not compiler_of(ByteTokens())


# ---------------------------------------------------------------- the sampler


def logits(seed: int, best: str = "") -> mx.array:
    values = np.random.default_rng(seed).standard_normal((1, WIDTH)).astype(np.float32)
    for rank, char in enumerate(best):
        values[0, ord(char)] = 20 - rank
    return mx.array(values)


def generate(params: SamplingParams, steps: int, best: str = "") -> list[int]:
    sampler = Sampler(WIDTH, TOKENS.eog_ids, TOKENS)
    sampler.begin(0, params, [1])
    tokens: list[int] = []
    for step in range(steps):
        sampled = sampler.sample(logits(step, best), [0])
        mx.eval(*sampled.arrays())
        tokens.append(cast(list[int], sampled.tokens.tolist())[0])
        sampler.accept(0, tokens[-1])
    return tokens


CHAINS = {
    "greedy": GREEDY,
    "greedy with a bias": replace(GREEDY, logit_bias=((ord("b"), 3.0),)),
    "default": SamplingParams(seed=1),
    "hot": SamplingParams(seed=2, temperature=1.5, top_k=0, top_p=1.0, min_p=0.0),
    "penalties": SamplingParams(seed=3, repeat_penalty=1.3),
    "typical": SamplingParams(seed=4, typical_p=0.9),
    "xtc": SamplingParams(seed=5, xtc_probability=0.5, xtc_threshold=0.05),
    "dry": SamplingParams(seed=6, dry_multiplier=0.8),
    "mirostat": SamplingParams(seed=7, mirostat=2),
    "adaptive": SamplingParams(seed=8, samplers=("top_k", "adaptive_p"), adaptive_target=0.2),
    "infill": SamplingParams(seed=9, samplers=("top_k", "infill")),
}


@pytest.mark.parametrize("name", CHAINS)
def test_every_chain_keeps_to_the_grammar(name: str) -> None:
    params = replace(CHAINS[name], grammar=Grammar("gbnf", 'root ::= [a-d]{4} "!"'))
    tokens = generate(params, 7)
    text = b"".join(map(TOKENS.piece, tokens[: tokens.index(TOKENS.eos_id)]))
    assert len(text) == 5 and set(text[:4]) <= set(b"abcd") and text[4:] == b"!"


def test_a_text_that_fits_anyway_is_sampled_as_if_there_were_no_grammar() -> None:
    """The draws too are those of a free row, as long as nothing is refused."""
    for seed in range(5):
        free = SamplingParams(seed=seed, temperature=1.0, min_p=0.3)
        grammar = Grammar("gbnf", "root ::= [a-z]+")
        assert generate(replace(free, grammar=grammar), 8, "abcdef") == generate(free, 8, "abcdef")


def test_a_refused_token_is_drawn_again_with_the_next_number() -> None:
    """Half of the draws are refused; what was allowed at once is the free row's."""
    free = SamplingParams(seed=1, temperature=4.0, top_k=4, top_p=1.0, min_p=0.0)
    bound = generate(replace(free, grammar=Grammar("gbnf", "root ::= [ac]+")), 1, "abcd")
    assert bound[0] in (ord("a"), ord("c"))
    first = generate(free, 1, "abcd")
    assert bound == first or first[0] in (ord("b"), ord("d"))


def report(params: SamplingParams, best: str) -> list[int]:
    sampler = Sampler(WIDTH, TOKENS.eog_ids, TOKENS)
    sampler.begin(0, params, [1])
    sampled = sampler.sample(logits(0, best), [0])
    mx.eval(*sampled.arrays())
    probs = sampled.probs(0)
    assert probs is not None
    return [candidate.token for candidate in probs.top]


def test_probabilities_after_sampling_are_of_the_draw_that_counted() -> None:
    params = SamplingParams(seed=1, top_k=3, min_p=0.0, top_p=1.0, n_probs=3, post_sampling_probs=True)
    fits = replace(params, grammar=Grammar("gbnf", "root ::= [a-z]+"))
    refuses = replace(params, grammar=Grammar("gbnf", "root ::= [x-z]"))
    assert report(fits, "abcdef") == [*b"abc"]
    assert set(report(refuses, "abcdef")) == set(b"xyz")


def test_probabilities_before_sampling_know_no_grammar() -> None:
    params = replace(GREEDY, n_probs=2, grammar=Grammar("gbnf", 'root ::= "z"'))
    assert report(params, "ab") == [*b"ab"]


def test_a_complete_text_ends_even_where_its_end_is_forbidden() -> None:
    bias = ((TOKENS.eos_id, -math.inf),)
    params = replace(GREEDY, logit_bias=bias, grammar=Grammar("gbnf", 'root ::= "a" "b"?'))
    assert generate(params, 4, "ab") == [*b"ab", TOKENS.eos_id, TOKENS.eos_id]


def test_a_lazy_grammar_leaves_a_row_alone_before_its_trigger() -> None:
    grammar = Grammar("gbnf", 'root ::= "b" "cd"', lazy=True, triggers=(Trigger("word", "b"),))
    params = replace(GREEDY, grammar=grammar)
    sampler = Sampler(WIDTH, TOKENS.eog_ids, TOKENS)
    sampler.begin(0, params, [1])
    tokens = []
    for best in ("x", "b", "x", "x", "x"):
        sampled = sampler.sample(logits(0, best), [0])
        mx.eval(*sampled.arrays())
        tokens.append(cast(list[int], sampled.tokens.tolist())[0])
    assert tokens == [*b"xbcd", TOKENS.eos_id]


def test_rows_with_grammars_need_no_host() -> None:
    sampler = Sampler(WIDTH, TOKENS.eog_ids, TOKENS)
    sampler.begin(0, replace(GREEDY, grammar=Grammar("gbnf", 'root ::= "a"')), [1])
    assert not sampler.needs_host(0)


def test_a_vocabulary_without_an_end() -> None:
    class Endless(ByteTokens):
        eos_id = -1
        eog_ids = frozenset()

    endless = Endless()
    sampler = Sampler(WIDTH, endless.eog_ids, endless)
    sampler.begin(0, replace(GREEDY, grammar=Grammar("gbnf", 'root ::= "ab"')), [1])
    tokens = []
    for step in range(2):
        sampled = sampler.sample(logits(step), [0])
        mx.eval(*sampled.arrays())
        tokens.append(cast(list[int], sampled.tokens.tolist())[0])
    assert tokens in ([*b"ab"], [TOKENS.texts.index(b"ab"), tokens[1]])
