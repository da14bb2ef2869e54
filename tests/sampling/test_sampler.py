"""Rows in a batch: independence, pipelining, reports."""

from __future__ import annotations

import math
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mlxserver.sampling.params import SamplerError, SamplingParams
from mlxserver.sampling.probs import LOWEST
from mlxserver.sampling.sampler import Sampler
from tests.sampling.texts import MadeUp

N_VOCAB = 5000
PROMPT = [1, 2, 3, 1, 2]
EXOTIC = SamplingParams(
    seed=11, repeat_penalty=1.2, frequency_penalty=0.1, dry_multiplier=0.8, top_n_sigma=2.0, typical_p=0.95,
    xtc_probability=0.5, xtc_threshold=0.02, dynatemp_range=0.4, temperature=1.3,
)  # fmt: skip
KINDS = {
    "greedy": SamplingParams(temperature=0),
    "default": SamplingParams(seed=5),
    "penalties": SamplingParams(seed=5, repeat_penalty=1.3, repeat_last_n=7),
    "long tail": SamplingParams(seed=6, top_k=0, top_p=1, min_p=0),
    "mirostat": SamplingParams(seed=7, mirostat=2),
    "adaptive": SamplingParams(seed=8, samplers=("top_k", "adaptive_p"), adaptive_target=0.2),
    "infill": SamplingParams(seed=9, samplers=("top_k", "infill")),
    "exotic": EXOTIC,
}


def sampler() -> Sampler:
    vocabulary = MadeUp(N_VOCAB)
    return Sampler(N_VOCAB, vocabulary.eog_ids, vocabulary)


def logits_after(tokens: list[list[int]]) -> mx.array:
    """Logits that depend on each row's whole text, as a model's do."""
    rows = [np.random.default_rng(hash(tuple(t)) % 2**32).standard_normal(N_VOCAB) * 3 for t in tokens]
    return mx.array(np.array(rows, dtype=np.float32))


def generate(params: dict[int, SamplingParams], steps: int) -> dict[int, list[int]]:
    tested = sampler()
    for row, p in params.items():
        tested.begin(row, p, PROMPT)
    rows = list(params)
    texts: dict[int, list[int]] = {row: [] for row in rows}
    for _ in range(steps):
        sampled = tested.sample(logits_after([texts[row] for row in rows]), rows)
        mx.eval(*sampled.arrays())
        for i, row in enumerate(rows):
            token = int(sampled.tokens[i].item())
            tested.accept(row, token)
            texts[row].append(token)
    return texts


def test_a_full_batch_gives_every_row_the_text_it_has_alone() -> None:
    together = generate(dict(enumerate(KINDS.values())), 200)
    for row, params in enumerate(KINDS.values()):
        assert together[row] == generate({row: params}, 200)[row]


def test_neighbours_of_one_kind_do_not_disturb_each_other() -> None:
    many = {row: replace(EXOTIC, seed=row, top_k=5 + row, repeat_last_n=3 + row) for row in range(6)}
    together = generate(many, 60)
    assert all(together[row] == generate({row: p}, 60)[row] for row, p in many.items())
    assert len({tuple(text) for text in together.values()}) == 6


def test_rows_may_join_and_leave() -> None:
    tested = sampler()
    logits = logits_after([[step] for step in range(4)])
    tested.begin(1, SamplingParams(seed=3), PROMPT)
    alone = [tested.sample(logits[i : i + 1], [1]).tokens.item() for i in range(4)]
    tested.begin(1, SamplingParams(seed=3), PROMPT)
    tested.begin(2, SamplingParams(seed=4), PROMPT)
    first = tested.sample(mx.repeat(logits[:1], 2, axis=0), [2, 1]).tokens[1].item()
    tested.end(2)
    rest = [tested.sample(logits[i : i + 1], [1]).tokens.item() for i in range(1, 4)]
    assert [first, *rest] == alone


@pytest.mark.parametrize("kind", ["penalties", "mirostat", "adaptive", "greedy", "default"])
def test_a_pipelined_row_does_not_wait_for_its_token(kind: str) -> None:
    params = replace(KINDS[kind], temperature=1.5 if kind != "greedy" else 0)
    logits = mx.repeat(logits_after([[1]]), 1, axis=0)
    waiting, ahead = sampler(), sampler()
    for tested in (waiting, ahead):
        tested.begin(0, params, PROMPT)
        assert not tested.needs_host(0)
    expected = []
    for _ in range(30):
        sampled = waiting.sample(logits, [0])
        mx.eval(*sampled.arrays())
        waiting.accept(0, int(sampled.tokens.item()))
        expected.append(sampled.tokens.item())
    lazy = [ahead.sample(logits, [0]) for _ in range(30)]
    assert [s.tokens.item() for s in lazy] == expected


@pytest.mark.parametrize("kind", ["exotic", "infill"])
def test_rows_that_need_their_last_token(kind: str) -> None:
    tested = sampler()
    tested.begin(0, KINDS[kind], PROMPT)
    assert tested.needs_host(0)


def test_states_are_evaluated_with_the_step() -> None:
    tested = sampler()
    tested.begin(0, replace(KINDS["penalties"], xtc_probability=0.5), PROMPT)
    assert len(tested.sample(logits_after([[1]]), [0]).arrays()) == 1 + 3


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_any_floating_type(dtype: mx.Dtype) -> None:
    logits = logits_after([[1], [2]]).astype(dtype)
    tested = sampler()
    tested.begin(0, KINDS["greedy"], PROMPT)
    tested.begin(1, KINDS["default"], PROMPT)
    sampled = tested.sample(logits, [0, 1])
    assert sampled.tokens.dtype == mx.int32
    assert sampled.tokens[0].item() == mx.argmax(logits[0]).item()
    assert sampled.probs(0) is None


def test_log_probabilities_are_of_the_raw_logits() -> None:
    tested = sampler()
    tested.begin(0, SamplingParams(temperature=0, logit_bias=((3, 100.0),), n_probs=2), PROMPT)
    tested.begin(1, SamplingParams(seed=1, top_k=3, n_probs=4), PROMPT)
    logits = logits_after([[1], [2]])
    sampled = tested.sample(logits, [0, 1])
    mx.eval(*sampled.arrays())
    expected = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    biased, plain = sampled.probs(0), sampled.probs(1)
    assert biased is not None and plain is not None
    assert (biased.chosen.token, biased.chosen.value) == (3, pytest.approx(expected[0, 3], abs=1e-5))
    for row, probs, n in ((0, biased, 2), (1, plain, 4)):
        best = np.argsort(-expected[row])[:n]
        assert [c.token for c in probs.top] == best.tolist()
        assert [c.value for c in probs.top] == pytest.approx(expected[row, best].tolist(), abs=1e-5)


def test_a_probability_of_zero_has_the_lowest_logarithm() -> None:
    tested = sampler()
    tested.begin(0, SamplingParams(temperature=0, n_probs=3), PROMPT)
    logits = mx.full((1, N_VOCAB), -mx.inf)
    logits[0, 4] = 0.0
    logits[0, 5] = -300.0
    probs = tested.sample(logits, [0]).probs(0)
    assert probs is not None
    assert [(c.token, c.value) for c in probs.top[:2]] == [(4, 0.0), (5, LOWEST)]
    assert probs.top[2].value == LOWEST


def test_a_forbidden_vocabulary_takes_nothing_down() -> None:
    for params in KINDS.values():
        tested = sampler()
        params = replace(params, logit_bias=((1, -math.inf),), n_probs=2, post_sampling_probs=True)
        tested.begin(0, params, [])
        sampled = tested.sample(mx.full((1, N_VOCAB), -mx.inf), [0])
        mx.eval(*sampled.arrays())
        assert 0 <= int(sampled.tokens.item()) < N_VOCAB
        assert sampled.probs(0) is not None


def test_parameters_no_chain_can_be_built_from() -> None:
    with pytest.raises(SamplerError):
        sampler().begin(0, SamplingParams(repeat_penalty=0), PROMPT)
