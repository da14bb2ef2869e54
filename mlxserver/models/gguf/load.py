"""A GGUF file as a loaded model."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from gguf.constants import GGMLQuantizationType as Type

from mlxserver.models import sampling_defaults
from mlxserver.models.device import (
    WeightPolicy,
    compute_dtype,
    float_type_name,
    keeps_quantized,
    require_experts,
)
from mlxserver.models.errors import ModelError
from mlxserver.models.gguf import rope
from mlxserver.models.gguf.architectures import Architecture, lookup, model_config
from mlxserver.models.gguf.classifier import load_classifier
from mlxserver.models.gguf.file_types import file_type
from mlxserver.models.gguf.model_file import ModelFile, open_model
from mlxserver.models.gguf.overrides import OverriddenMetadata
from mlxserver.models.gguf.weights import Loaded, load_weights
from mlxserver.models.model import POOLINGS, Model, ModelInfo, Tokenizer, piece_text
from mlxserver.models.parameters import n_bytes
from mlxserver.models.rope import set_rope
from mlxserver.models.rope_options import FROM_MODEL, RopeOptions


def load_gguf(
    path: Path,
    name: str,
    dtype: str,
    weights: WeightPolicy,
    override_kv: Sequence[str] = (),
    rope_options: RopeOptions = FROM_MODEL,
) -> tuple[Model, list[str]]:
    """Loads the file (or the first part of a split one) at ``path``; ``name`` is what the user called it.

    Returns the model, all its parameters evaluated, and lines worth a log entry.
    Raises ModelError.
    """
    file = open_model(path)
    metadata = OverriddenMetadata(file.metadata, override_kv)
    file = replace(file, metadata=metadata)
    architecture = lookup(file)
    tokenizer = _tokenizer(file)
    module = _build(file, architecture)
    _require_vocabulary(file, tokenizer)
    kind = compute_dtype(dtype, _own_type(file))
    require_experts(module, kind)
    loaded = load_weights(module, file, architecture, kind, keeps_quantized(weights))
    notes = _set_rope(module, file, architecture, rope_options)
    module.eval()
    head = load_classifier(file, kind)
    info = _info(file, name, module, tokenizer, file_type_loaded(file, loaded, kind), rope_options)
    return Model(module, tokenizer, info, head), metadata.notes + notes + _notes(loaded, kind)


def _set_rope(module: Any, file: ModelFile, architecture: Architecture, given: RopeOptions) -> list[str]:
    if not architecture.is_encoder:
        return set_rope(module, architecture.model_type, rope.trained_rope(file), given)
    given.refuse(f"the encoder {file.architecture!r}")
    return []


def file_type_loaded(file: ModelFile, loaded: Loaded, dtype: mx.Dtype) -> str:
    return file_type(file.metadata, file.tensors) if loaded.packed else float_type_name(dtype)


def _build(file: ModelFile, architecture: Architecture) -> Any:
    config = model_config(file, architecture)
    arch = importlib.import_module(architecture.class_module)
    try:
        module: Any = arch.Model(arch.ModelArgs.from_dict(config))
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, ZeroDivisionError) as error:
        raise ModelError(f"{file.path}: the metadata describe no {file.architecture!r} model") from error
    if config["tie_word_embeddings"]:
        _tie(module)
    return module


def _tie(module: Any) -> None:
    """Some of mlx-lm's classes tie the embeddings only in ``sanitize``, when the weights have no head."""
    if "lm_head" in module and getattr(module, "tie_word_embeddings", None) is False:
        module.tie_word_embeddings = True
        module.pop("lm_head")


def _require_vocabulary(file: ModelFile, tokenizer: Tokenizer) -> None:
    n_rows = file.tensors["token_embd.weight"].shape[0]
    if tokenizer.n_vocab != n_rows:
        raise ModelError(f"{file.path}: {tokenizer.n_vocab} tokens, but embeddings of {n_rows}")


def _own_type(file: ModelFile) -> mx.Dtype:
    """The 16-bit type of the weights; quantised blocks have float16 scales."""
    kinds = Counter(tensor.type for tensor in file.tensors.values() if len(tensor.shape) > 1)
    return mx.bfloat16 if kinds[Type.BF16] > kinds.total() / 2 else mx.float16


def _tokenizer(file: ModelFile) -> Tokenizer:
    from mlxserver.models.tokenizer import from_gguf

    try:
        return from_gguf(file.metadata)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise ModelError(f"{file.path}: the vocabulary is damaged or of an unknown kind: {error}") from error


def _info(
    file: ModelFile, name: str, module: Any, tokenizer: Tokenizer, ftype: str, given: RopeOptions
) -> ModelInfo:
    kv = file.hyperparameters
    return ModelInfo(
        path=name,
        architecture=file.architecture,
        n_vocab=file.tensors["token_embd.weight"].shape[0],
        n_ctx_train=kv.count("context_length"),
        n_embd=kv.count("embedding_length"),
        n_params=sum(tensor.n_elements for tensor in file.tensors.values()),
        size=_size(file, module),
        ftype=ftype,
        bos_text=piece_text(tokenizer, tokenizer.bos_id),
        eos_text=piece_text(tokenizer, tokenizer.eos_id),
        chat_template=_text(file.metadata, "tokenizer.chat_template"),
        chat_template_tool_use=_text(file.metadata, "tokenizer.chat_template.tool_use"),
        sampling_defaults=sampling_defaults.from_metadata(file.metadata),
        rope=f"{rope.trained_rope(file)} {given}",
        pooling=_pooling(kv.get("pooling_type")),
        rerank_template=_text(file.metadata, "tokenizer.chat_template.rerank"),
    )


def _pooling(number: Any) -> str:
    """Of a model that does not say how it is pooled: the empty text."""
    return POOLINGS[number] if isinstance(number, int) and 0 <= number < len(POOLINGS) else ""


def _size(file: ModelFile, module: Any) -> int:
    """Bytes of all parameters and of the rope factors, which llama.cpp counts too."""
    factors = sum(tensor.data.nbytes for name, tensor in file.tensors.items() if name in rope.TENSORS)
    return factors + n_bytes(module)


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key, "")
    return value if isinstance(value, str) else ""


def _notes(loaded: Loaded, dtype: mx.Dtype) -> list[str]:
    notes = []
    if loaded.packed:
        notes.append(f"{_listed(loaded.packed)} stay quantised in MLX's format")
    if loaded.dequantized:
        notes.append(f"{_listed(loaded.dequantized)} are dequantised to {str(dtype).rpartition('.')[2]}")
    return notes


def _listed(types: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(types.items())) + " tensors"
