"""Keys moved to another position are the keys that would have been computed there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from mlxserver.models import rotary
from mlxserver.models.rotary import CannotShift, Rotation, Watched, find_rotations, watch
from tests.models import tiny

HEAD = {"head_dim": 16, "max_position_embeddings": 512, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "mscale": 1.0}
LONG = {
    "type": "longrope",
    "long_factor": [1.0 + i for i in range(8)],
    "short_factor": [1.0] * 8,
    "original_max_position_embeddings": 128,
}


def scaled(**scaling: Any) -> Callable[[], Any]:
    return lambda: tiny.llama(**HEAD, rope_scaling=scaling)


KINDS: dict[str, Callable[[], Any]] = {
    "default": lambda: tiny.llama(**HEAD),
    "traditional": lambda: tiny.llama(**HEAD, rope_traditional=True),
    "linear": scaled(type="linear", factor=4.0),
    "llama3": scaled(**LLAMA3),
    "yarn": scaled(**YARN),
    "longrope": lambda: tiny.build(
        "phi3", **{**tiny.COMMON, **HEAD, "hidden_size": 64, "rope_scaling": LONG, "pad_token_id": 0}
    ),
    "partial": lambda: tiny.build("glm4", **{**tiny.COMMON, **HEAD, "attention_bias": False, **PARTIAL}),
    "normed keys": lambda: tiny.qwen3(),
    "latent": lambda: tiny.deepseek_v3(),
    "latent yarn": lambda: tiny.deepseek_v3(rope_scaling=MLA_YARN),
}
PARTIAL = {"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5}
MLA_YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32,
    "beta_slow": 1,
}


def first_layer(module: Any, rotation: Rotation, start: int) -> mx.array:
    """What layer 0, which depends on no context, rotates of four tokens from position ``start`` on."""
    layer = watch(module, start, 4)[0]
    found = layer.values if rotation.of_values else layer.keys
    assert found is not None
    return found


def largest(a: mx.array, b: mx.array) -> float:
    return float(mx.abs(a - b).max().item())


@pytest.mark.parametrize("kind", KINDS)
def test_moved_keys_are_the_fresh_ones(kind: str) -> None:
    module = KINDS[kind]()
    rotation = find_rotations(module, 512)[0]
    assert rotation is not None
    for by in (1, 7, 512, 4096):
        for start, to in ((40 + by, 40), (40, 40 + by)):
            fresh = first_layer(module, rotation, to)
            old = first_layer(module, rotation, start)
            assert largest(old, fresh) > 1e-2, "the test would pass without a rotation"
            assert largest(rotation.moved(old, start, to), fresh) < 1e-5, (kind, by)


@pytest.mark.parametrize("kind", KINDS)
def test_many_moves_in_a_row(kind: str) -> None:
    module = KINDS[kind]()
    rotation = find_rotations(module, 512)[0]
    assert rotation is not None
    keys, start = first_layer(module, rotation, 5000), 5000
    for by in [1, 7, 64, 13] * 16:
        keys, start = rotation.moved(keys, start, start - by), start - by
    assert largest(keys, first_layer(module, rotation, start)) < 1e-5


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_rounding_grows_with_the_layers(dtype: mx.Dtype) -> None:
    module = tiny.llama(**HEAD, num_hidden_layers=16)
    module.set_dtype(dtype)
    assert all(find_rotations(module, 512))


def test_attention_that_knows_the_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only later layers show is found in 16 bits too."""
    attention = mx.fast.scaled_dot_product_attention

    def sharper_with_the_position(*args: Any, **how: Any) -> mx.array:
        return attention(*args, **how) * position[0]

    position = [1.0]
    plain = Watched.update_and_fetch

    def noting(self: Watched, keys: mx.array, values: mx.array) -> Any:
        position[0] = 1.0 if self.offset == 0 else 1.5
        return plain(self, keys, values)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", sharper_with_the_position)
    monkeypatch.setattr(Watched, "update_and_fetch", noting)
    module = tiny.llama(**HEAD, num_hidden_layers=4)
    module.set_dtype(mx.bfloat16)
    with pytest.raises(CannotShift, match="keys of layer 1 depend on their position"):
        find_rotations(module, 512)


def test_each_layer_has_its_own_rotation() -> None:
    bases = [rotation.base for rotation in find_rotations(tiny.gemma3(), 512) if rotation]
    assert bases == [10000.0, 10000.0, 1000000.0]


def test_a_layer_without_positions_is_left_alone() -> None:
    module = tiny.build("smollm3", **{**tiny.COMMON, **HEAD, "no_rope_layers": [1, 0]})
    first, second = find_rotations(module, 512)
    assert first is not None and second is None


def test_a_rotation_that_depends_on_the_length_is_refused() -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    module = tiny.build(
        "internlm3", **{**tiny.COMMON, **HEAD, "bias": False, "qkv_bias": False, "rope_scaling": dynamic}
    )
    with pytest.raises(CannotShift, match="internlm3: the rotation depends on the length"):
        find_rotations(module, 512)


def test_learned_positions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without evaluating any that the model's table may not have: MLX would read beyond its end."""
    asked: list[int] = []

    def noting(module: Any, start: int, n: int) -> list[rotary.Watched]:
        asked.append(start + n)
        return watch(module, start, n)

    monkeypatch.setattr(rotary, "watch", noting)
    gpt2 = {
        "n_ctx": 256,
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 256,
        "layer_norm_epsilon": 1e-5,
    }
    with pytest.raises(CannotShift, match="gpt2: no rotary position embedding"):
        find_rotations(tiny.build("gpt2", vocab_size=256, **gpt2), 16)
    assert max(asked) <= 16


def test_positions_of_several_parts_are_refused() -> None:
    module = tiny.llama(**HEAD, rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]})
    with pytest.raises(CannotShift, match="M-RoPE"):
        find_rotations(module, 512)
