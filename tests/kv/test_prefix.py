"""Where two sequences part."""

from __future__ import annotations

import os.path
import random

import pytest

from mlxserver.kv.prefix import common_prefix


@pytest.mark.parametrize("n", [0, 1, 2, 3, 17, 400])
def test_it_is_what_a_comparison_one_by_one_finds(n: int) -> None:
    chance = random.Random(n)
    a = [chance.randrange(3) for _ in range(n)]
    for end in range(n + 1):
        assert common_prefix(a, a[:end]) == common_prefix(a[:end], a) == end
        b = [*a[:end], 7, *a[end + 1 :]]
        assert common_prefix(a, b) == len(os.path.commonprefix([a, b]))


def test_of_texts_and_of_unlike_sequences() -> None:
    assert common_prefix("ab c", "ab d") == 3
    assert common_prefix((1, 2, 3), [1, 2, 4]) == 2
