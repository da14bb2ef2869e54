"""Rows of very unequal length decode in two passes, and get the tokens that they get alone."""

from __future__ import annotations

import random

import pytest

from mlxserver.engine import row_groups as module
from mlxserver.engine.row_groups import row_groups
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from tests.engine.bench import Bench, oracle
from tests.models import tiny


def test_one_long_row_has_a_pass_of_its_own() -> None:
    assert row_groups(range(9), [50] * 4 + [4000] + [50] * 4, 100, 1000) == [[0, 1, 2, 3, 5, 6, 7, 8], [4]]


def test_the_cut_saves_the_most() -> None:
    assert row_groups([3, 1, 2, 0], [900, 10, 1000, 20], 1, 1) == [[1, 0], [3, 2]]


def test_rows_stay_together_where_the_weights_cost_more() -> None:
    lengths = [50] * 8 + [4000]
    assert row_groups(range(9), lengths, 100, 2_000_000) == [list(range(9))]
    assert len(row_groups(range(9), lengths, 100, 1_000_000)) == 2


def test_even_rows_and_a_single_one_are_one_pass() -> None:
    assert row_groups([0, 1], [70, 70], 1000, 0) == [[0, 1]]
    assert row_groups([5], [70], 1000, 0) == [[5]]


def test_the_rows_of_each_pass_are_neighbours() -> None:
    chance = random.Random(1)
    states = SlotStates(cache_maker(tiny.llama()), 7, KV_TYPES["f32"], KV_TYPES["f32"])
    for _ in range(200):
        slots = chance.sample(range(7), chance.randint(2, 7))
        cut = chance.randint(1, len(slots) - 1)
        passes = states.arrange_passes([slots[:cut], slots[cut:]])
        assert {frozenset(each) for each in passes} == {frozenset(slots[:cut]), frozenset(slots[cut:])}
        for each in passes:
            rows = [states._rows.of(slot) for slot in each]
            assert rows == list(range(rows[0], rows[0] + len(rows)))


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral_sliding", "mixtral", "deepseek_v3"])
def test_two_passes_give_the_tokens_of_single_runs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams join and end while it lasts, and the long one grows on."""
    monkeypatch.setattr(module, "WORTH", 0.0)
    make = tiny.ALL[kind]
    bench = Bench(make)
    prompts = [tuple((i * 37 + j * 11) % 250 for j in range(n)) for i, n in enumerate((7, 300, 12, 9, 40))]
    lengths = [14, 20, 9, 22, 12]
    for i, (prompt, n) in enumerate(zip(prompts, lengths, strict=True)):
        bench.submit(i, prompt, n_predict=n)
    found = bench.finish(*range(5))
    bench.close()
    assert bench.errors == []
    single = make()
    assert found == [oracle(single, prompt, n) for prompt, n in zip(prompts, lengths, strict=True)]
