"""What a model cannot do is refused before it serves anything."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.engine.task import Failed
from mlxserver.models.errors import ModelError
from tests.engine.bench import Bench
from tests.models import tiny


@pytest.mark.parametrize(
    ("changes", "option"),
    [({"cache_reuse": 8}, "--cache-reuse"), ({"context_shift": True}, "--context-shift")],
)
@pytest.mark.parametrize(("kind", "cache"), [("gemma3", "RotatingKVCache"), ("mamba2", "ArraysCache")])
def test_options_that_move_state(kind: str, cache: str, changes: dict[str, Any], option: str) -> None:
    with pytest.raises(ModelError, match=f"{option} cannot be used with this model: {cache} cannot shift: "):
        Bench(getattr(tiny, kind), **changes)


def test_the_request_s_field_is_refused_and_the_next_request_served() -> None:
    bench = Bench(tiny.mamba2)
    bench.submit(0, [1, 2, 3], n_predict=2, n_cache_reuse=1)
    bench.submit(1, [1, 2, 3], n_predict=2, n_cache_reuse=0)
    assert len(bench.finish(0, 1)[1]) == 2
    failed = bench.of(0, Failed)[0]
    assert failed.type == "invalid_request_error"
    assert failed.message.startswith("n_cache_reuse cannot be used with this model: ArraysCache cannot shift")
    bench.close()


def test_full_windows_may_shift() -> None:
    bench = Bench(tiny.gemma3, swa_full=True, context_shift=True, n_ctx_slot=64)
    bench.submit(0, list(range(40)), n_predict=60)
    assert len(bench.finish(0)[0]) == 60
    bench.close()
