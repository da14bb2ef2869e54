"""An MLX folder (config.json and safetensors, quantised or not) as a loaded model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from mlxserver.models import sampling_defaults
from mlxserver.models.chat_templates import chat_templates
from mlxserver.models.device import (
    WeightPolicy,
    compute_dtype,
    float_type_name,
    keeps_quantized,
    require_experts,
)
from mlxserver.models.encoders.folder import MODEL_TYPES, load_encoder
from mlxserver.models.errors import ModelError
from mlxserver.models.model import Model, ModelInfo, piece_text
from mlxserver.models.parameters import n_bytes, n_parameters, named_parameters
from mlxserver.models.rope import set_rope
from mlxserver.models.rope_config import ROPE_KEYS, trained_rope
from mlxserver.models.rope_options import FROM_MODEL, RopeOptions

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
NO_CONTEXT_LENGTH = 2**20
"""Tokens of a model that nothing bounds, a recurrent one; llama.cpp's converter writes the same."""
_LOAD_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OSError, RuntimeError)


def load_folder(
    path: Path, name: str, dtype: str, weights: WeightPolicy, rope: RopeOptions = FROM_MODEL
) -> tuple[Model, list[str]]:
    """Loads the model in the folder ``path``; ``name`` is what the user called it.

    Returns the model, all its parameters evaluated, and lines worth a log entry. Raises ModelError,
    also for a model that brings its own Python code, which is never run.
    """
    from mlxserver.models.tokenizer import from_folder

    config = read_json(path / "config.json")
    if not config:
        raise ModelError(f"{path}: no MLX model folder: config.json is missing or empty")
    if "model_file" in config:
        raise ModelError(f"{path}: the model brings its own code ({config['model_file']}), which is not run")
    if config.get("model_type") in MODEL_TYPES:
        rope.refuse(f"the encoder {config['model_type']!r}")
        return load_encoder(path, config, name, dtype, weights)
    generation = read_json(path / "generation_config.json")
    try:
        module, notes = _load(path, dtype, weights)
    except _LOAD_ERRORS as error:
        raise ModelError(f"{path}: {' '.join(str(error).split())[:300] or type(error).__name__}") from error
    text = {**config, **config.get("text_config", {})}
    if rope.names:
        notes += _change_rope(module, text, rope)
    tokenizer = from_folder(path)
    templates = chat_templates(path)
    info = ModelInfo(
        path=name,
        architecture=str(config.get("model_type", "")),
        n_vocab=int(text.get("vocab_size", tokenizer.n_vocab)),
        n_ctx_train=_context_length(text, module),
        n_embd=int(text.get("hidden_size", text.get("n_embd", text.get("d_model", 0)))),
        n_params=n_parameters(module),
        size=n_bytes(module),
        ftype=_type_name(module),
        bos_text=piece_text(tokenizer, tokenizer.bos_id),
        eos_text=piece_text(tokenizer, tokenizer.eos_id),
        chat_template=templates.get("default", ""),
        chat_template_tool_use=templates.get("tool_use", ""),
        sampling_defaults=sampling_defaults.from_generation_config(generation),
        rope=f"{[text.get(key) for key in ROPE_KEYS]} {rope}",
    )
    return Model(module, tokenizer, info), notes


def _change_rope(module: Any, text: Mapping[str, Any], rope: RopeOptions) -> list[str]:
    try:
        return set_rope(module, str(text.get("model_type", "")), trained_rope(module, text), rope)
    except ModelError as error:
        raise ModelError(f"{', '.join(rope.names)}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file; empty if there is no file. Raises ModelError for anything else."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value


def _load(path: Path, dtype: str, weights: WeightPolicy) -> tuple[Any, list[str]]:
    from mlx_lm.utils import dequantize_model, load_model

    module, _ = load_model(path, lazy=True)
    own = _own_dtype(module)
    kind = compute_dtype(dtype, own)
    require_experts(module, kind)
    notes = []
    if _bits(module) and not keeps_quantized(weights):
        notes.append(f"{sum(_bits(module).values())} quantised matrices are dequantised to {_short(kind)}")
        dequantize_model(module)
    module.update(tree_map(lambda value: _cast(value, kind), module.parameters()))
    return module, notes


def _cast(value: mx.array, kind: mx.Dtype) -> mx.array:
    """Evaluates one parameter at a time, so that it never lies in memory in both types."""
    if mx.issubdtype(value.dtype, mx.floating):
        value = value.astype(kind)
    mx.eval(value)
    return value


def _own_dtype(module: Any) -> mx.Dtype:
    """The most frequent type of the weights or, of quantised ones, their scales."""
    counts: Counter[mx.Dtype] = Counter()
    for _, value in named_parameters(module):
        if mx.issubdtype(value.dtype, mx.floating):
            counts[value.dtype] += value.size
    return counts.most_common(1)[0][0]


def _bits(module: Any) -> Counter[int]:
    """Bits → number of quantised matrices."""
    return Counter(part.bits for part in module.modules() if "scales" in part and hasattr(part, "bits"))


def _type_name(module: Any) -> str:
    bits = _bits(module)
    return f"MLX {bits.most_common(1)[0][0]}-bit" if bits else float_type_name(_own_dtype(module))


def _short(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]


def _context_length(config: Mapping[str, Any], module: Any) -> int:
    """Tokens; as the configuration says, or for attention as mlx-lm has it for the architecture."""
    defaults = dict(vars(module.args)) if hasattr(module, "args") else {}
    for source in (config, defaults if "num_attention_heads" in defaults else {}):
        for key in _CONTEXT_KEYS:
            if isinstance(found := source.get(key), int) and found > 0:
                return found
    return NO_CONTEXT_LENGTH
