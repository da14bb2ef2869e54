import math

import pytest

from mlxserver.sampling.params import SamplerError, SamplingParams, validate


@pytest.mark.parametrize("repeat", [0.0, -1.0, math.inf, math.nan, 1e-40])
def test_a_repeat_penalty_without_a_reciprocal(repeat: float) -> None:
    with pytest.raises(SamplerError, match="^penalty_repeat must be finite and greater than 0$"):
        validate(SamplingParams(repeat_penalty=repeat))


def test_penalties_that_are_not_finite() -> None:
    with pytest.raises(SamplerError, match="^penalty_freq must be finite$"):
        validate(SamplingParams(frequency_penalty=math.inf))
    with pytest.raises(SamplerError, match="^penalty_present must be finite$"):
        validate(SamplingParams(presence_penalty=math.nan))


def test_the_defaults_are_valid() -> None:
    validate(SamplingParams())
