import pytest

from mlxserver.sampling.chain import Signature, signature
from mlxserver.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), ("top_k", "top_p", "min_p", "temperature", "dist")),
        (SamplingParams(temperature=0), ("greedy",)),
        (SamplingParams(top_k=1), ("greedy",)),
        (SamplingParams(temperature=0, repeat_penalty=1.1, dry_multiplier=1), ("penalties", "dry", "greedy")),
        (SamplingParams(temperature=0, logit_bias=((1, 1.0),)), ("logit_bias", "greedy")),
        (SamplingParams(temperature=0, mirostat=2, logit_bias=((1, 1.0),)), ("logit_bias", "greedy")),
        (SamplingParams(mirostat=1, temperature=1, repeat_penalty=2), ("mirostat",)),
        (SamplingParams(mirostat=2), ("temperature", "mirostat_v2")),
        (SamplingParams(temperature=0, samplers=()), ("dist",)),
        (SamplingParams(temperature=0, samplers=("top_k",)), ("top_k", "dist")),
        (SamplingParams(temperature=0, samplers=("adaptive_p", "temperature")), ("greedy",)),
        (SamplingParams(samplers=("adaptive_p", "top_k", "unknown")), ("top_k", "adaptive_p")),
        (SamplingParams(temperature=0, typical_p=0.5, samplers=("typ_p", "temperature")),
         ("typ_p", "zero_temperature", "dist")),
        (SamplingParams(temperature=0, repeat_penalty=2, samplers=("top_k", "penalties", "temperature")),
         ("top_k", "penalties", "zero_temperature", "dist")),
        (SamplingParams(temperature=0, repeat_penalty=2, samplers=("temperature", "penalties")), ("greedy",)),
        (SamplingParams(temperature=0, dynatemp_range=0.5, samplers=("temperature",)),
         ("dynamic_temperature", "dist")),
        (SamplingParams(min_keep=2, samplers=("min_p", "min_p")), ("min_p_keep", "min_p_keep", "dist")),
        (SamplingParams(repeat_penalty=2, repeat_last_n=0, samplers=("penalties",)), ("dist",)),
        (SamplingParams(dry_multiplier=1, dry_base=0.5, samplers=("dry",)), ("dist",)),
        (SamplingParams(xtc_probability=1, xtc_threshold=0.51, samplers=("xtc",)), ("dist",)),
    ],
)  # fmt: skip
def test_what_parameters_amount_to(params: SamplingParams, expected: Signature) -> None:
    assert signature(params) == expected
