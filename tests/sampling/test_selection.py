import mlx.core as mx
import numpy as np
import pytest

from mlxserver.sampling.selection import pick


@pytest.mark.parametrize("n", [3, 1024, 1025, 200_000])
def test_the_first_position_that_reaches_the_share(n: int) -> None:
    rng = np.random.default_rng(n)
    weights = rng.random((6, n)) ** 8
    weights[:, ::3] = 0
    weights /= weights.sum(axis=-1, keepdims=True)
    uniform = rng.random((6, 1))
    index = np.array(pick(mx.array(weights.astype(np.float32)), mx.array(uniform.astype(np.float32))))[:, 0]
    cumulated = weights.cumsum(axis=-1)
    rows = np.arange(6)
    # One position off is allowed where the share lies within rounding of a border.
    assert (cumulated[rows, index] >= uniform[:, 0] - 1e-5).all()
    assert (cumulated[rows, index] - weights[rows, index] <= uniform[:, 0] + 1e-5).all()
    assert (weights[rows, index] > 0).all()


@pytest.mark.parametrize("n", [4, 3000])
@pytest.mark.parametrize("share", [0.0, float(np.nextafter(np.float32(1), np.float32(0))), 1.0])
def test_no_weight_no_choice_at_the_ends(n: int, share: float) -> None:
    weights = mx.zeros((1, n))
    weights[0, 1] = 0.5
    weights[0, n - 2] = 0.5
    assert pick(weights, mx.array([[share]])).item() == (1 if share == 0 else n - 2)


def test_frequencies_follow_the_weights() -> None:
    weights = mx.broadcast_to(mx.array([0.1, 0.0, 0.6, 0.3]), (20_000, 4))
    uniform = mx.array(np.random.default_rng(0).random((20_000, 1)).astype(np.float32))
    counts = np.bincount(np.array(pick(weights, uniform))[:, 0], minlength=4) / 20_000
    assert counts.tolist() == pytest.approx([0.1, 0.0, 0.6, 0.3], abs=0.015)
