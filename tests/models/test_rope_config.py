from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxserver.models.errors import ModelError
from mlxserver.models.load import ModelSource, load_model
from mlxserver.models.rope import set_rope
from mlxserver.models.rope_config import trained_rope
from mlxserver.models.rope_options import RopeOptions
from tests.models import tiny
from tests.models.gguf_files import logits
from tests.models.test_folder import write

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "factor": 2.0}
BASE = RopeOptions(freq_base=50000.0)


def config(module: Any, **more: Any) -> dict[str, Any]:
    return {**vars(module.args), "max_position_embeddings": 512, **more}


@pytest.mark.parametrize(
    ("scaling", "scale", "kind"),
    [(None, 1.0, "linear"), (LINEAR, 0.5, "linear"), (YARN, 0.25, "yarn"), (LLAMA3, 1.0, "linear")],
)
def test_what_a_configuration_says(scaling: dict[str, Any] | None, scale: float, kind: str) -> None:
    module = tiny.llama(rope_scaling=scaling)
    trained = trained_rope(module, config(module))
    assert (trained.base, trained.scale, trained.scaling) == (10000.0, scale, kind)
    assert trained.orig_ctx == (scaling or {}).get("original_max_position_embeddings", 512)
    assert (trained.factors is not None) is (scaling is LLAMA3)


@pytest.mark.parametrize("scaling", [None, LINEAR, YARN, LLAMA3])
def test_a_changed_base_is_that_of_a_model_made_with_it(
    scaling: dict[str, Any] | None, tmp_path: Path
) -> None:
    original = tiny.llama(rope_scaling=scaling, max_position_embeddings=512)
    wanted = tiny.llama(rope_scaling=scaling, rope_theta=50000.0, max_position_embeddings=512)
    source = ModelSource(path=str(write(tmp_path, original)))
    model, notes = load_model(source, "float32", rope=BASE)
    assert len(notes) == 1 and "freq_base = 50000.0" in notes[0]
    assert not mx.allclose(logits(model.module), logits(original), rtol=1e-2, atol=1e-2)
    if scaling is LLAMA3:  # its factors stay those of the trained base
        return
    assert mx.allclose(logits(model.module), logits(wanted), rtol=1e-4, atol=1e-4)


def test_gemma3_changes_the_layers_with_full_attention_only() -> None:
    original, module = tiny.gemma3(rope_theta=1e6), tiny.gemma3(rope_theta=1e6)
    wanted = tiny.gemma3(rope_theta=50000.0)
    set_rope(module, "gemma3_text", trained_rope(module, config(module)), BASE)
    assert mx.allclose(logits(module), logits(wanted), rtol=1e-5, atol=1e-5)
    assert mx.abs(logits(module) - logits(original)).max().item() > 0.01


@pytest.mark.parametrize(
    ("build", "more", "message"),
    [
        (tiny.deepseek_v3, {}, "multi-head latent attention"),
        (tiny.mamba2, {}, "the layers of mamba2 have no rotary embedding that can be changed"),
        (tiny.mistral_sliding, {}, "llama's sliding windows"),
        (
            lambda: tiny.llama(rope_scaling={"type": "dynamic", "factor": 2.0}, max_position_embeddings=64),
            {},
            "the rotary embedding DynamicNTKScalingRoPE cannot be changed",
        ),
        (lambda: tiny.llama(rope_scaling=YARN), {"rope_theta": 20000.0}, "does not describe the rotary"),
        (lambda: tiny.llama(rope_scaling=YARN), {"rope_theta": None}, "does not tell rope_theta"),
    ],
)
def test_what_cannot_be_changed_is_named(build: Any, more: dict[str, Any], message: str) -> None:
    module = build()
    with pytest.raises(ModelError, match=message):
        trained_rope(module, config(module, **more))


def test_the_refusal_names_the_option(tmp_path: Path) -> None:
    source = ModelSource(path=str(write(tmp_path, tiny.mamba2(), num_key_value_heads=1)))
    with pytest.raises(ModelError, match="^--rope-freq-base: the layers of mamba2 have no rotary"):
        load_model(source, "float32", rope=BASE)
