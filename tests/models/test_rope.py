"""Every option against ggml's ``rope_yarn``, written out here angle by angle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope

from mlxserver.models.errors import ModelError
from mlxserver.models.load import ModelSource, load_model
from mlxserver.models.rope import make_rope, set_rope, windowed_layers
from mlxserver.models.rope_options import FROM_MODEL, RopeOptions, TrainedRope, effective
from tests.models import gguf_files, tiny
from tests.models.gguf_files import KINDS, logits

DIMS, CONTEXT = 16, 64
TRAINED = TrainedRope(base=10000.0, orig_ctx=CONTEXT)
FACTORS = [1.0, 1.0, 1.2, 1.5, 2.0, 4.0, 8.0, 8.0]

CASES = {
    "base": RopeOptions(freq_base=50000.0),
    "scale": RopeOptions(freq_scale=0.25),
    "stretched": RopeOptions(freq_scale=1.5),
    "none": RopeOptions(scaling="none", freq_scale=0.25),
    "linear with a magnitude": RopeOptions(scaling="linear", freq_scale=0.5, yarn_attn_factor=1.2),
    "yarn": RopeOptions(scaling="yarn", freq_scale=0.25),
    "yarn, other context": RopeOptions(scaling="yarn", freq_scale=0.25, yarn_orig_ctx=32),
    "half a mix": RopeOptions(scaling="yarn", freq_scale=0.25, yarn_ext_factor=0.5),
    "more than a mix": RopeOptions(freq_scale=0.7, yarn_ext_factor=1.7, freq_base=20000.0),
    "no mix": RopeOptions(scaling="yarn", freq_scale=0.25, yarn_ext_factor=0.0, yarn_attn_factor=0.9),
    "betas": RopeOptions(scaling="yarn", freq_scale=0.25, yarn_beta_fast=2.0, yarn_beta_slow=0.1),
    "zero betas": RopeOptions(scaling="yarn", freq_scale=0.25, yarn_beta_fast=0.0, yarn_beta_slow=0.0),
    "no magnitude": RopeOptions(yarn_attn_factor=0.0),
    "yarn, stretched": RopeOptions(scaling="yarn", freq_scale=1.5),
}


def turned(x: np.ndarray[Any, Any], given: RopeOptions, factors: list[float] | None) -> np.ndarray[Any, Any]:
    """``x`` (positions, DIMS) in halves, as ggml turns it at the positions 0, 1, ..."""
    none = given.scaling == "none"
    scale = 1.0 if none else given.freq_scale or 1.0
    base = given.freq_base or 10000.0
    ext = given.yarn_ext_factor if given.yarn_ext_factor >= 0 else float(given.scaling == "yarn")
    magnitude = given.yarn_attn_factor if given.yarn_attn_factor >= 0 else 1.0
    if ext:
        stretch = 1.0 / scale
        magnitude = max(1.0, 0.1 * math.log(stretch) + 1.0) / (1.0 + 0.1 * math.log(stretch))
        magnitude *= 1.0 + 0.1 * math.log(1.0 / scale)
    low, high = corrections(given, base)
    result = np.empty_like(x)
    for position in range(len(x)):
        for i in range(DIMS // 2):
            extrapolated = position * base ** (-2 * i / DIMS) / (factors[i] if factors else 1.0)
            ramp = 1 - min(1, max(0, (i - low) / max(0.001, high - low)))
            mix = ramp * ext
            theta = scale * extrapolated * (1 - mix) + extrapolated * mix
            a, b = x[position, i], x[position, i + DIMS // 2]
            result[position, i] = (a * math.cos(theta) - b * math.sin(theta)) * magnitude
            result[position, i + DIMS // 2] = (a * math.sin(theta) + b * math.cos(theta)) * magnitude
    return result


def corrections(given: RopeOptions, base: float) -> tuple[float, float]:
    context = given.yarn_orig_ctx or CONTEXT

    def dimension(beta: float) -> float:
        if beta == 0:
            return math.inf
        return DIMS * math.log(context / (beta * 2 * math.pi)) / (2 * math.log(base))

    fast = dimension(given.yarn_beta_fast if given.yarn_beta_fast >= 0 else 32.0)
    slow = dimension(given.yarn_beta_slow if given.yarn_beta_slow >= 0 else 1.0)
    low = math.inf if fast == math.inf else math.floor(fast)
    high = DIMS - 1 if slow == math.inf else math.ceil(slow)
    return max(0, low), min(DIMS - 1, high)


@pytest.mark.parametrize("factors", [None, FACTORS], ids=["plain", "factors"])
@pytest.mark.parametrize("name", CASES)
def test_angles_and_magnitudes_are_ggmls(name: str, factors: list[float] | None) -> None:
    x = np.random.default_rng(0).standard_normal((3 * CONTEXT, DIMS)).astype(np.float32)
    rope = make_rope(DIMS, False, effective(TRAINED, CASES[name]), factors)
    ours = np.array(rope(mx.array(x)[None, None]))[0, 0]
    assert np.abs(ours - turned(x, CASES[name], factors)).max() < 5e-5


def test_the_cases_differ() -> None:
    x = np.random.default_rng(0).standard_normal((3 * CONTEXT, DIMS)).astype(np.float32)
    results = [turned(x, given, None) for name, given in CASES.items() if name != "none"]
    for i, a in enumerate(results):
        assert all(np.abs(a - b).max() > 0.01 for b in results[:i])


def load(path: Path, rope: RopeOptions) -> Any:
    return load_model(ModelSource(path=str(path)), "float32", rope=rope)


@pytest.mark.parametrize(
    ("rope", "scaling"),
    [
        (RopeOptions(freq_scale=0.5), {"type": "linear", "factor": 2.0}),
        (
            RopeOptions(scaling="yarn", freq_scale=0.25, yarn_orig_ctx=32),
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
    ],
)
@pytest.mark.parametrize("kind", ["llama", "qwen3moe"])
def test_a_file_with_options_is_a_model_made_with_that_scaling(
    kind: str, rope: RopeOptions, scaling: dict[str, Any], tmp_path: Path
) -> None:
    original = gguf_files.write(tmp_path / "model.gguf", KINDS[kind])
    model, notes = load(tmp_path / "model.gguf", rope)
    assert notes[0].startswith("rope: freq_base = 10000.0, freq_scale = 0.")
    unscaled = logits(original)
    assert mx.abs(logits(model.module) - unscaled).max().item() > 0.01
    for layer in original.layers:
        old = layer.self_attn.rope
        layer.self_attn.rope = initialize_rope(old.dims, old.base, old.traditional, scaling)
    assert mx.allclose(logits(model.module), logits(original), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gemma3", "gemma2", "gpt-oss"])
def test_layers_with_a_window_keep_their_own(kind: str, tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "model.gguf", KINDS[kind])
    before, _ = load(tmp_path / "model.gguf", FROM_MODEL)
    after, _ = load(tmp_path / "model.gguf", RopeOptions(freq_base=123456.0))
    windowed = windowed_layers(before.module, {"gemma3": "gemma3_text", "gpt-oss": "gpt_oss"}.get(kind, kind))
    assert 0 < sum(windowed) < len(windowed)
    x = mx.random.normal((1, 1, 40, 16))
    for is_windowed, old, new in zip(windowed, before.module.layers, after.module.layers, strict=True):
        same = mx.array_equal(old.self_attn.rope(x), new.self_attn.rope(x)).item()
        assert same is is_windowed


def test_layers_without_positions_stay_so(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "model.gguf", KINDS["smollm3"])
    model, _ = load(tmp_path / "model.gguf", RopeOptions(freq_base=123456.0))
    names = [type(layer.self_attn.rope).__name__ for layer in model.module.layers]
    assert names == ["RoPE", "RoPE", "RoPE", "NoPE"]


def test_factors_of_a_file_stay_in_force(tmp_path: Path) -> None:
    """Of llama 3's and longrope's embedding an option changes base and scale, never the factors."""
    for kind, factors in (("llama3-rope", [1.0, None, 8.0, 8.0]), ("phi3-longrope", [1.0, 1.5, 2.0, 4.0])):
        gguf_files.write(tmp_path / "model.gguf", KINDS[kind])
        model, _ = load(tmp_path / "model.gguf", RopeOptions(freq_base=2.0**16, freq_scale=0.5))
        found = (model.module.layers[0].self_attn.rope._freqs / 2.0 ** mx.array([1, 5, 9, 13])).tolist()
        for ours, wanted in zip(found, factors, strict=True):
            assert wanted is None or ours == pytest.approx(wanted, rel=1e-5)


def test_a_window_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ModelError, match="the rotary embedding of llama's sliding windows is not known"):
        set_rope(tiny.mistral_sliding(), "llama", TRAINED, RopeOptions(freq_base=50000.0))


def test_factors_of_another_width_are_refused() -> None:
    with pytest.raises(ModelError, match="8 rope factors for 8 dimensions"):
        make_rope(8, False, effective(TRAINED, FROM_MODEL), FACTORS)
