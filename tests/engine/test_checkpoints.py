"""Where in a prompt state that cannot be cut is stored."""

from __future__ import annotations

import pytest

from mlxserver.engine.checkpoints import is_checkpoint, next_checkpoint
from mlxserver.engine.task import Started
from tests.engine.bench import Bench
from tests.models import tiny


def marks(n_prompt: int, n_ubatch: int, min_step: int) -> list[int]:
    found, done = [], 0
    while done < n_prompt - 1:
        done = next_checkpoint(done, n_prompt, n_ubatch, min_step)
        found.append(done)
    return found


def test_the_last_tokens_a_batch_before_them_and_steps_on_the_way() -> None:
    assert marks(n_prompt=1001, n_ubatch=512, min_step=400) == [400, 484, 800, 996, 1000]
    assert marks(n_prompt=1001, n_ubatch=512, min_step=0) == [484, 996, 1000]
    assert marks(n_prompt=3, n_ubatch=512, min_step=8192) == [2]


def test_only_marks_are_checkpoints() -> None:
    assert [n for n in range(101) if is_checkpoint(n, 101, 32, 40)] == [40, 64, 80, 96, 100]


@pytest.mark.parametrize(("checkpoints", "reused"), [(32, 56), (0, 0)])
def test_a_prompt_that_parts_before_the_end_goes_on_from_a_checkpoint(checkpoints: int, reused: int) -> None:
    """A recurrent model: without checkpoints only the whole state of a slot can be gone on with."""
    bench = Bench(tiny.mamba2, n_slots=1, ctx_checkpoints=checkpoints, n_ubatch=512)
    prompt = [(3 * i) % 250 for i in range(61)]
    bench.submit(0, prompt, n_predict=2)
    bench.finish(0)
    bench.submit(1, [*prompt[:58], 7, 8, 9], n_predict=2)
    bench.finish(1)
    assert bench.of(1, Started)[0].n_past == reused
    bench.close()
