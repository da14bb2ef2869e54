"""The sampler against the reference chain: lists, probabilities and choices, over random requests."""

from __future__ import annotations

import math
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxserver.sampling.chain import signature
from mlxserver.sampling.params import DEFAULT_CHAIN, SamplingParams
from mlxserver.sampling.sampler import Sampled, Sampler
from tests.sampling.reference_chain import ReferenceChain
from tests.sampling.texts import MadeUp

STEPS = 3
NAMES = (*DEFAULT_CHAIN, "infill", "adaptive_p")


def sampler(n_vocab: int) -> Sampler:
    vocabulary = MadeUp(n_vocab)
    return Sampler(n_vocab, vocabulary.eog_ids, vocabulary)


def reference(params: SamplingParams, prompt: list[int], n_vocab: int) -> ReferenceChain:
    v = MadeUp(n_vocab)
    return ReferenceChain(params, prompt, n_vocab, v.eog_ids, v.eos_id, v.texts, v.encode)


def step(tested: Sampler, logits: np.ndarray, rows: list[int]) -> Sampled:
    sampled = tested.sample(mx.array(logits), rows)
    mx.eval(*sampled.arrays())
    for i, row in enumerate(rows):
        tested.accept(row, int(sampled.tokens[i].item()))
    return sampled


def likely(listed: dict[int, float]) -> dict[int, float]:
    """Without what 32-bit floats may round to 0."""
    return {token: p for token, p in listed.items() if p > 1e-30}


def one_of(*values: float) -> st.SearchStrategy[float]:
    return st.sampled_from(values)


requests = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**32 - 2),
    temperature=one_of(0.0, 0.3, 0.8, 1.0, 2.5),
    dynatemp_range=one_of(0.0, 0.0, 0.5, 1.5),
    dynatemp_exponent=one_of(1.0, 2.0),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 1000]),
    top_p=one_of(0.0, 0.3, 0.9, 1.0),
    min_p=one_of(0.0, 0.05, 0.4, 2.0),
    top_n_sigma=one_of(-1.0, -1.0, 0.7, 1.9),
    xtc_probability=one_of(0.0, 0.5, 1.0),
    xtc_threshold=one_of(0.02, 0.1, 0.6),
    typical_p=one_of(0.2, 0.8, 1.0, 1.0),
    repeat_last_n=st.sampled_from([0, 1, 3, 64]),
    repeat_penalty=one_of(0.7, 1.0, 1.4),
    presence_penalty=one_of(0.0, 0.5),
    frequency_penalty=one_of(0.0, 0.0, -0.3),
    dry_multiplier=one_of(0.0, 0.8),
    dry_base=one_of(0.5, 1.0, 1.75),
    dry_allowed_length=st.sampled_from([0, 1, 2]),
    dry_penalty_last_n=st.sampled_from([0, 4, 64]),
    dry_sequence_breakers=st.sampled_from([(), ("\n", ":"), ("ab:",), ("ba",)]),
    mirostat=st.sampled_from([0, 0, 0, 0, 1, 2]),
    mirostat_tau=one_of(1.0, 5.0),
    mirostat_eta=one_of(0.1, 0.6),
    adaptive_target=one_of(-1.0, 0.2, 0.9),
    adaptive_decay=one_of(0.5, 0.9, 2.0),
    samplers=st.one_of(st.just(DEFAULT_CHAIN), st.lists(st.sampled_from(NAMES), max_size=6).map(tuple)),
    logit_bias=st.sampled_from([(), ((3, 4.0),), ((1, -math.inf), (2, 1.0), (2, 1.0))]),
    min_keep=st.sampled_from([0, 0, 3]),
)

prompts = st.lists(st.integers(1, 6), max_size=30)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(requests, st.integers(0, 2**20), prompts, st.sampled_from([2, 30, 700]))
def test_lists_probabilities_and_choices(
    params: SamplingParams, noise: int, prompt: list[int], n_vocab: int
) -> None:
    n_vocab = max(n_vocab, 7 if prompt or params.logit_bias else 2)
    params = replace(params, n_probs=n_vocab, post_sampling_probs=True)
    tested = sampler(n_vocab)
    tested.begin(0, params, prompt)
    expected = reference(params, prompt, n_vocab)
    rng = np.random.default_rng(noise)
    for _ in range(STEPS):
        logits = (rng.standard_normal((1, n_vocab)) * 3).astype(np.float32)
        sampled = step(tested, logits, [0])
        token = expected.sample(logits[0].tolist())
        assert sampled.tokens.item() == token
        greedy = signature(params)[-1] == "greedy"
        listed = {token: 1.0} if greedy else expected.report()
        chosen = 1.0 if greedy else next(e.p for e in expected.list if e.id == token)
        probs = sampled.probs(0)
        assert probs is not None
        assert likely({c.token: c.value for c in probs.top}) == pytest.approx(likely(listed), rel=2e-3)
        assert probs.chosen.value == pytest.approx(chosen, rel=2e-3)
