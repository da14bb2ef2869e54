import mlx.core as mx
import numpy as np
import pytest

from mlxserver.sampling.params import RANDOM_SEED
from mlxserver.sampling.random import ConditionalDraws, Draws, Mersenne
from tests.sampling.reference_chain import Mt19937


def test_the_standards_ten_thousandth_number() -> None:
    generator = Mt19937(5489)
    assert [generator.word() for _ in range(10_000)][-1] == 4123659995


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31, 2**32 - 2])
def test_doubles_and_floats_are_the_standard_generators(seed: int) -> None:
    doubles, floats = Mt19937(seed), Mt19937(seed)
    assert Mersenne(seed).doubles(700).tolist() == [np.float32(doubles.double()) for _ in range(700)]
    expected = [floats.float() for _ in range(700)]
    assert Mersenne(seed).floats(700).tolist() == pytest.approx(expected, rel=1e-7)


def test_chunks_join_without_a_gap() -> None:
    draws = Draws(Mersenne(3).doubles)
    assert [draws.next() for _ in range(600)] == Mersenne(3).doubles(600).tolist()


def test_the_random_seed_differs_each_time() -> None:
    assert Mersenne(RANDOM_SEED).doubles(4).tolist() != Mersenne(RANDOM_SEED).doubles(4).tolist()


def test_a_draw_not_consumed_comes_again() -> None:
    draws = ConditionalDraws(Mersenne(9).floats)
    conditions = [i % 3 != 0 for i in range(1200)]
    taken = [draws.take(mx.array(c)) for c in conditions]
    mx.eval(taken)
    expected = Mersenne(9).floats(1200)
    consumed = np.concatenate([[0], np.cumsum(conditions)[:-1]])
    assert [t.item() for t in taken] == expected[consumed].tolist()
