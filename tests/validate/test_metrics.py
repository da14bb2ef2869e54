"""Each figure on traces made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlxserver.validate.judge import Bounds
from mlxserver.validate.metrics import BLOCK, Rows, Trace, compare, joined, summary


def logits(*probabilities: list[float]) -> np.ndarray:
    """Rows of logits that have these probabilities, each row off by a constant of its own."""
    rows = [np.log(np.array(row)) + 5.0 * i for i, row in enumerate(probabilities)]
    return np.array(rows, dtype=np.float32)


COLD = Trace([0, 1, 2], logits([0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.4 - 1e-4, 0.2 + 1e-4]))


def test_equal_traces_differ_by_nothing() -> None:
    found = summary(compare(COLD, Rows(0, COLD.logits)), gap=0.0)
    assert (found.n, found.max_difference, found.mean_difference) == (3, 0, 0)
    assert (found.max_kl, found.mean_kl, found.n_disagree) == (0, 0, 0)


def test_a_constant_added_to_all_logits_is_no_difference() -> None:
    found = summary(compare(COLD, Rows(0, COLD.logits + 3)), gap=0.0)
    assert found.max_difference < 1e-6 and found.max_kl < 1e-12


def test_differences_divergence_and_gap() -> None:
    found = compare(COLD, Rows(1, logits([0.2, 0.5, 0.3])))
    changes = [math.log(0.2 / 0.1), math.log(0.6 / 0.5), 0.0]
    assert found.position.tolist() == [1]
    assert found.largest == pytest.approx([changes[0]], abs=1e-6)
    # the three tokens, and the text's own next one (2) once more
    assert found.mean == pytest.approx([sum(changes) / 4], abs=1e-6)
    kl = 0.1 * math.log(0.1 / 0.2) + 0.6 * math.log(0.6 / 0.5)
    assert found.kl == pytest.approx([kl], abs=1e-6)
    assert found.gap == pytest.approx([math.log(2)], abs=1e-6)
    assert found.is_other.tolist() == [False]


def test_only_decided_positions_disagree() -> None:
    other = logits([0.3, 0.5, 0.2], [0.1, 0.6, 0.3], [0.3, 0.5, 0.2])
    found = compare(COLD, Rows(0, other))
    assert found.is_other.tolist() == [True, False, True]
    result = summary(found, gap=0.01)
    assert (result.n_decided, result.n_disagree) == (2, 1)
    assert summary(found, gap=1e-5).n_disagree == 2
    assert summary(found, gap=0.6).n_disagree == 0


def test_only_the_best_tokens_and_the_next_one_are_watched() -> None:
    wide = np.zeros((1, 40), dtype=np.float32)
    wide[0, :10] = 10.0
    cold = Trace([39], wide)
    far = wide.copy()
    far[0, 20] = -50.0  # neither among the ten nor the text's
    assert compare(cold, Rows(0, far)).largest[0] < 1e-3
    cold = Trace([1, 20], np.concatenate([wide, wide]))
    assert compare(cold, Rows(0, far)).largest[0] == pytest.approx(50.0, abs=1e-3)


def test_long_rows_are_compared_whole() -> None:
    n = 2 * BLOCK + 3
    rng = np.random.default_rng(0)
    cold = Trace([0] * n, rng.normal(size=(n, 20)).astype(np.float32))
    rows = rng.normal(size=(n, 20)).astype(np.float32)
    whole = compare(cold, Rows(0, rows))
    single = joined([compare(cold, Rows(i, rows[i : i + 1])) for i in range(n)])
    assert whole.position.tolist() == list(range(n))
    assert np.array_equal(whole.kl, single.kl) and np.array_equal(whole.largest, single.largest)


@pytest.mark.parametrize("rows", [Rows(2, COLD.logits), Rows(-1, COLD.logits), Rows(0, COLD.logits[:, :2])])
def test_rows_of_another_trace_are_refused(rows: Rows) -> None:
    with pytest.raises(ValueError, match="do not belong to this trace"):
        compare(COLD, rows)


def test_not_a_number_is_within_no_bound() -> None:
    rows = COLD.logits.copy()
    rows[1, 0] = math.nan
    result = summary(compare(COLD, Rows(0, rows)), gap=0.01)
    everything = Bounds(gap=0.01, difference=math.inf, kl=math.inf)
    assert not everything.hold("exact", result) and not everything.hold("bounded", result)


def test_bounds() -> None:
    same = summary(compare(COLD, Rows(0, COLD.logits)), gap=0.01)
    off = summary(compare(COLD, Rows(0, logits([0.3, 0.5, 0.2]))), gap=0.01)
    bounds = Bounds(gap=0.01, difference=1.0, kl=0.5)
    assert bounds.hold("exact", same) and bounds.hold("bounded", same) and bounds.hold("bounded", off)
    assert off.max_difference < 1.0 and not bounds.hold("exact", off), "its best token is another one"
    assert not Bounds(0.01, 1.0, 0.05).hold("bounded", off)
