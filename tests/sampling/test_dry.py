from hypothesis import given
from hypothesis import strategies as st

from mlxserver.sampling.dry import DryHistory, common_runs, find_breakers
from mlxserver.sampling.params import SamplingParams
from mlxserver.sampling.vocabulary import Pieces
from tests.sampling.texts import MadeUp


@given(st.lists(st.integers(0, 2), max_size=40))
def test_common_runs(tokens: list[int]) -> None:
    def run(k: int) -> int:
        pairs = zip(tokens, tokens[k:], strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), len(tokens) - k)

    assert common_runs(tokens)[1:] == [run(k) for k in range(1, len(tokens))]


def test_breakers_within_tokens_and_across_them() -> None:
    vocabulary = MadeUp(30)
    breakers = find_breakers(["ab:", ""], Pieces(30, vocabulary))
    texts = {vocabulary.texts[token]: tails for token, tails in breakers.items()}
    assert texts[b"a"] == {(2, 3)}
    assert texts[b"ab"] == {(3,)}
    assert texts[b"ba"] == {(2, 3)}
    assert b"b" not in texts


def test_a_continued_repetition_costs_by_its_length() -> None:
    params = SamplingParams(dry_multiplier=2.0, dry_base=3.0, dry_allowed_length=1)
    history = DryHistory(params, {}, [7, 8, 9, 5, 7, 8])
    assert history.penalties() == {9: 2.0 * 3.0}
    history.push(9)
    assert history.penalties() == {5: 2.0 * 9.0}
    history.push(4)
    assert history.penalties() == {}


def test_a_breaker_limits_how_far_back_a_repetition_reaches() -> None:
    params = SamplingParams(dry_multiplier=2.0, dry_base=3.0, dry_allowed_length=1)
    assert DryHistory(params, {7: {()}}, [7, 8, 9, 5, 7, 8]).penalties() == {9: 2.0}


@given(st.lists(st.text("ab:\n ", min_size=0, max_size=5), max_size=6))
def test_breakers_are_those_that_a_search_through_all_tokens_finds(texts: list[str]) -> None:
    pieces = Pieces(30, MadeUp(30))
    wanted: dict[int, set[tuple[int, ...]]] = {}
    for breaker in (text.encode() for text in texts if text):
        for token, piece in enumerate(pieces.all()):
            tails = {
                tuple(pieces.encode(breaker[n:]))
                for n in range(1, len(breaker))
                if piece.endswith(breaker[:n]) and breaker not in piece
            }
            if breaker in piece:
                tails.add(())
            if tails:
                wanted.setdefault(token, set()).update(tails)
    assert find_breakers(texts, pieces) == wanted
