from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from mlxserver.models.errors import ModelError
from mlxserver.models.rope_options import (
    FROM_MODEL,
    RopeOptions,
    TrainedRope,
    effective,
    in_window,
    notes,
)

TRAINED = TrainedRope(base=10000.0, orig_ctx=2048)
YARN = TrainedRope(base=10000.0, orig_ctx=512, scale=0.25, scaling="yarn")


def options(**given: object) -> SimpleNamespace:
    defaults = {
        "rope_scaling": "",
        "rope_freq_base": None,
        "rope_freq_scale": None,
        "yarn_orig_ctx": 0,
        "yarn_ext_factor": -1.0,
        "yarn_attn_factor": -1.0,
        "yarn_beta_slow": -1.0,
        "yarn_beta_fast": -1.0,
    }
    return SimpleNamespace(**{**defaults, **given})


def test_without_options_the_model_decides() -> None:
    assert RopeOptions.from_options(options()) == FROM_MODEL
    assert FROM_MODEL.names == ()
    plain, yarn = effective(TRAINED, FROM_MODEL), effective(YARN, FROM_MODEL)
    assert (plain.base, plain.scale, plain.ext_factor, plain.magnitude) == (10000.0, 1.0, 0.0, 1.0)
    assert (yarn.scale, yarn.ext_factor, yarn.orig_ctx) == (0.25, 1.0, 512)
    assert yarn.magnitude == pytest.approx(1 + 0.1 * math.log(4))
    assert notes(yarn, FROM_MODEL) == []


def test_zero_and_negative_numbers_leave_it_to_the_model() -> None:
    given = RopeOptions.from_options(options(rope_freq_base=0.0, rope_freq_scale=0.0, yarn_beta_fast=-3.0))
    assert given.names == ()
    assert effective(YARN, given) == effective(YARN, FROM_MODEL)


def test_every_option_is_named() -> None:
    given = RopeOptions("yarn", 1e6, 0.5, 4096, 0.0, 0.0, 0.0, 0.0)
    assert given.names == (
        "--rope-scaling",
        "--rope-freq-base",
        "--rope-freq-scale (--rope-scale)",
        "--yarn-orig-ctx",
        "--yarn-ext-factor",
        "--yarn-attn-factor",
        "--yarn-beta-slow",
        "--yarn-beta-fast",
    )
    with pytest.raises(ModelError, match="--rope-scaling, --rope-freq-base.*: not supported for the encoder"):
        given.refuse("the encoder 'bert'")
    FROM_MODEL.refuse("the encoder 'bert'")


def test_scaling_none_never_scales() -> None:
    given = RopeOptions(scaling="none", freq_scale=0.5)
    assert effective(YARN, given).scale == 1.0
    assert effective(YARN, given).ext_factor == 0.0
    assert notes(effective(YARN, given), given)[1:] == [
        "--rope-freq-scale (--rope-scale) has no effect where the scaling is 'none'"
    ]


def test_the_mix_of_yarn_replaces_a_given_attention_factor() -> None:
    given = RopeOptions(scaling="yarn", freq_scale=0.25, yarn_attn_factor=3.0)
    assert effective(TRAINED, given).magnitude == pytest.approx(1 + 0.1 * math.log(4))
    assert "--yarn-attn-factor has no effect" in notes(effective(TRAINED, given), given)[1]
    without_mix = RopeOptions(scaling="yarn", freq_scale=0.25, yarn_ext_factor=0.0, yarn_attn_factor=3.0)
    assert effective(TRAINED, without_mix).magnitude == 3.0
    assert notes(effective(TRAINED, without_mix), without_mix)[1:] == []


def test_compressed_positions_only_raise_the_magnitude() -> None:
    assert effective(TRAINED, RopeOptions(scaling="yarn", freq_scale=2.0)).magnitude == pytest.approx(1.0)


def test_the_models_own_attention_factor_multiplies() -> None:
    trained = TrainedRope(base=10000.0, orig_ctx=512, attn_factor=1.5)
    assert effective(trained, RopeOptions(yarn_attn_factor=2.0)).magnitude == 3.0
    assert effective(trained, FROM_MODEL).magnitude == 1.5


def test_options_of_yarn_without_its_mix_are_named() -> None:
    given = RopeOptions(yarn_orig_ctx=99, yarn_beta_slow=2.0, yarn_beta_fast=3.0)
    lines = notes(effective(TRAINED, given), given)
    assert lines[0] == "rope: freq_base = 10000.0, freq_scale = 1, ext_factor = 0, magnitude = 1.0000"
    assert [line.partition(" ")[0] for line in lines[1:]] == [
        "--yarn-orig-ctx",
        "--yarn-beta-slow",
        "--yarn-beta-fast",
    ]


def test_windows_keep_their_base_and_scale_but_not_the_rest() -> None:
    trained = TrainedRope(base=1e6, orig_ctx=512, window_base=10000.0, window_scale=1.0)
    full = effective(trained, RopeOptions(scaling="yarn", freq_base=5e5, freq_scale=2.0))
    window = in_window(full, trained)
    assert (full.base, full.scale) == (5e5, 2.0)
    assert (window.base, window.scale, window.ext_factor) == (10000.0, 1.0, 1.0)
    # llama.cpp cancels the magnitude of the full layers' scale here too.
    assert window.magnitude == pytest.approx(1 / (1 - 0.1 * math.log(2)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rope_freq_base": -1.0}, "--rope-freq-base: -1 is not above 1"),
        ({"rope_freq_base": math.nan}, "--rope-freq-base: nan is no finite number"),
        ({"rope_freq_scale": math.inf}, "--rope-freq-scale .--rope-scale.: inf is no finite number"),
        ({"rope_freq_scale": -0.5}, "--rope-freq-scale .--rope-scale.: -0.5 is negative"),
        ({"yarn_orig_ctx": -1}, "--yarn-orig-ctx: -1 is negative"),
        ({"yarn_ext_factor": math.nan}, "--yarn-ext-factor: nan is no finite number"),
        ({"yarn_beta_fast": math.inf}, "--yarn-beta-fast: inf is no finite number"),
    ],
)
def test_numbers_that_no_embedding_can_have(given: dict[str, float], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        RopeOptions.from_options(options(**given))


def test_yarn_needs_a_context_and_a_magnitude() -> None:
    with pytest.raises(ModelError, match="--yarn-orig-ctx is needed"):
        effective(TrainedRope(base=10000.0, orig_ctx=0), RopeOptions(scaling="yarn"))
    with pytest.raises(ModelError, match="leaves no magnitude"):
        effective(TRAINED, RopeOptions(scaling="yarn", freq_scale=math.exp(10)))
