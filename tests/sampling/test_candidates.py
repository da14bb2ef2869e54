import mlx.core as mx
import numpy as np
import pytest

from mlxserver.sampling.candidates import Candidates, best_positions


@pytest.mark.parametrize("n", [5, 64, 1000, 32_000, 50_257])
@pytest.mark.parametrize("k", [1, 5, 40, 700])
def test_best_positions_are_those_of_a_full_sort(n: int, k: int) -> None:
    values = np.random.default_rng(n + k).standard_normal((3, n)).astype(np.float32)
    found = np.array(best_positions(mx.array(values), min(k, n)))
    assert found.tolist() == np.argsort(-values, axis=-1)[:, :k].tolist()


def test_equal_values_come_in_the_order_of_their_ids() -> None:
    values = mx.zeros((1, 10_000))
    values[0, 9_000] = 1.0
    values[0, 7_000] = 1.0
    assert best_positions(values, 2).tolist() == [[7_000, 9_000]]


def test_padding_is_never_found_among_forbidden_tokens() -> None:
    values = mx.full((1, 10_001), -mx.inf)
    values[0, 17] = 0.0
    found = best_positions(values, 20).tolist()[0]
    assert found[0] == 17
    assert len(set(found)) == 20 and max(found) < 10_001


def test_those_that_left_sort_behind_the_forbidden() -> None:
    listed = Candidates(mx.array([[-mx.inf, 1.0, -mx.inf, 2.0]])).drop(mx.array([[False, True, True, True]]))
    ranked = listed.sort()
    assert ranked.ids is not None and ranked.keep is not None
    assert ranked.ids.tolist() == [[3, 1, 2, 0]]
    assert ranked.keep.tolist() == [[True, True, True, False]]
    assert ranked.size().tolist() == [[3]]
