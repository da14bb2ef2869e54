"""GGUF adapters, as llama.cpp reads them: pairs ``NAME.lora_a`` and ``NAME.lora_b`` and a few keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxserver.models.gguf.architectures import ARCHITECTURES, MIXTRAL, Architecture, module_path
from mlxserver.models.gguf.convert import float_array, unpack
from mlxserver.models.gguf.reader import GGUFPart, Tensor
from mlxserver.models.gguf.weights import head_order
from mlxserver.models.lora.adapter import AdapterError
from mlxserver.models.lora.pairs import Factor, Pair, no_layer, paired
from mlxserver.models.lora.targets import Target
from mlxserver.models.model import Model

_ENDINGS = {".lora_a": "a", ".lora_b": "b"}
_NORM = "_norm.weight"
_HEADS = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}


@dataclass(frozen=True, slots=True)
class Keys:
    """The metadata that matter. ``alpha`` 0: pairs are not divided by their rank."""

    architecture: str
    alpha: float
    task_name: str
    prompt_prefix: str
    invocation: tuple[int, ...]


def read_keys(metadata: Mapping[str, Any]) -> Keys:
    """Raises AdapterError for a file that is no LoRA adapter, or a key of another type."""
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        if metadata.get(key) != wanted:
            raise AdapterError(f"expect {key} to be '{wanted}', but got: {str(metadata.get(key, ''))[:40]}")
    return Keys(
        _text(metadata, "general.architecture"),
        _number(metadata, "adapter.lora.alpha"),
        _text(metadata, "adapter.lora.task_name"),
        _text(metadata, "adapter.lora.prompt_prefix"),
        _tokens(metadata, "adapter.alora.invocation_tokens"),
    )


def read_pairs(
    part: GGUFPart, keys: Keys, model: Model, targets: Mapping[str, Target]
) -> tuple[list[Pair], list[str]]:
    """The pairs, and lines worth a log entry."""
    architecture = _architecture(keys.architecture, model)
    norms = [name for name in part.tensors if name.endswith(_NORM)]
    others = {name: tensor for name, tensor in part.tensors.items() if name not in norms}
    pairs = [
        _pair(name, a, b, keys.alpha, architecture, model, targets)
        for name, (a, b) in paired(others, _ENDINGS).items()
    ]
    return pairs, [f"norm vectors are not applied: {norms[0]!r} and others"] if norms else []


def _pair(
    name: str,
    a: Tensor,
    b: Tensor,
    alpha: float,
    architecture: Architecture,
    model: Model,
    targets: Mapping[str, Target],
) -> Pair:
    path, _, ending = module_path(name, architecture).rpartition(".")
    target = targets.get(path) if ending == "weight" else None
    if target is None:
        raise no_layer(name)
    n_dims = 3 if target.n_experts else 2
    stored_a, stored_b = _factor(a, n_dims), _factor(b, n_dims)
    if architecture.permuted and (heads := _HEADS.get(name.rsplit(".", 2)[-2])):
        stored_b = _unpermuted(stored_b, name, getattr(model.module.args, heads))
    rank = stored_b.shape[-1]
    # of an embedding the first one is a row for each token
    own_a = stored_a if target.kind == "embedding" else stored_a.transposed
    return Pair(name, path, own_a, stored_b.transposed, alpha / rank if alpha else 1.0)


def _factor(tensor: Tensor, n_dims: int) -> Factor:
    """ggml leaves out leading axes of length 1 where it writes a file."""
    shape = (1,) * (n_dims - len(tensor.shape)) + tensor.shape
    return Factor(shape, _reader(tensor, shape))


def _reader(tensor: Tensor, shape: tuple[int, ...]) -> Callable[[], mx.array]:
    return lambda: float_array(tensor, unpack(tensor, tensor.data)).reshape(shape)


def _unpermuted(b: Factor, name: str, n_heads: int) -> Factor:
    """``b`` (out, rank) with its rows in mlx-lm's order."""
    n_rows = b.shape[0]
    if n_rows % (2 * n_heads):
        raise AdapterError(f"tensor '{name}' has incorrect shape: {n_rows} rows for {n_heads} heads")
    order = mx.array(head_order(n_rows, n_heads))
    return Factor(b.shape, lambda: b.read()[order])


def _architecture(name: str, model: Model) -> Architecture:
    """The one whose class the model has; a base from a GGUF file must have the very name."""
    own = type(model.module).__module__
    known = [*ARCHITECTURES.items(), ("llama", MIXTRAL)]
    candidates = {known_name: entry for known_name, entry in known if entry.class_module == own}
    if name not in candidates or (model.info.architecture in candidates and model.info.architecture != name):
        raise AdapterError(
            f"model arch and LoRA arch mismatch: the adapter is for '{name[:40]}', "
            f"the model is '{model.info.architecture}'"
        )
    return candidates[name]


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key, "")
    if not isinstance(value, str):
        raise AdapterError(f"invalid gguf type for {key}")
    return value


def _number(metadata: Mapping[str, Any], key: str) -> float:
    value = metadata.get(key, 0.0)
    if not isinstance(value, float):
        raise AdapterError(f"invalid gguf type for {key}")
    return value


def _tokens(metadata: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = metadata.get(key, [])
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise AdapterError(f"invalid gguf type for {key}")
    return tuple(value)
