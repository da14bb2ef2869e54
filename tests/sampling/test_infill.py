import math

import mlx.core as mx
import pytest

from mlxserver.sampling.candidates import Candidates
from mlxserver.sampling.infill import Infill
from mlxserver.sampling.vocabulary import Pieces
from tests.sampling.texts import MadeUp

N_VOCAB = 30
A, B, AB, BA = 1, 2, 6, 9
EOS = 0


def infilled(probs: dict[int, float]) -> dict[int, float]:
    """The tokens that stay with their logits, for a list of tokens with these probabilities."""
    vocabulary = MadeUp(N_VOCAB)
    assert [vocabulary.texts[t] for t in (A, B, AB, BA)] == [b"a", b"b", b"ab", b"ba"]
    infill = Infill(vocabulary.eog_ids, vocabulary.eos_id, Pieces(N_VOCAB, vocabulary))
    listed = Candidates(mx.log(mx.array([list(probs.values())])), mx.array([list(probs)], dtype=mx.int32))
    kept = infill(listed)
    assert kept.ids is not None
    return dict(zip(kept.ids[0].tolist(), kept.logits[0].tolist(), strict=True))


def test_a_likely_end_leaves_only_ends() -> None:
    assert set(infilled({A: 0.8, EOS: 0.2})) == {EOS}


def test_the_likelier_of_two_that_begin_alike_takes_both() -> None:
    assert infilled({A: 0.3, AB: 0.15, B: 0.55}) == pytest.approx({B: math.log(0.55), A: math.log(0.3)})
    assert set(infilled({A: 0.16, AB: 0.24, B: 0.6})) == {B, AB}


def test_a_token_must_exceed_an_even_share() -> None:
    assert set(infilled({A: 0.60, B: 0.25, 3: 0.15})) == {A}
    assert set(infilled({A: 0.55, B: 0.29, 3: 0.16})) == {A, B}


def test_nothing_likely_ends_the_text() -> None:
    assert set(infilled({t: 0.125 for t in (6, 7, 8, 9, 10, 11, 13, 14)})) == {EOS}
