"""Random adapters for tiny models: in memory, and as files in llama.cpp's, mlx-lm's and PEFT's formats.

GGUF names come from the gguf package's own map of Hugging Face names, so that the reader's tables are not
tested against themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from gguf.constants import MODEL_ARCH_NAMES
from gguf.constants import GGMLQuantizationType as Type

from mlxserver.models.lora.adapter import Adapter, LowRank, digest_of
from mlxserver.models.lora.targets import find_targets
from mlxserver.models.model import Model, ModelInfo
from tests.engine.bench import Letters
from tests.models import tiny
from tests.models.gguf_files import Kind

Matrices = dict[str, tuple[mx.array, mx.array]]
"""Module path -> a (in, rank), b (rank, out)."""
Tensors = dict[str, np.ndarray[Any, Any]]


def as_model(module: nn.Module, architecture: str = "llama") -> Model:
    info = ModelInfo("tiny", architecture, tiny.VOCAB, 512, tiny.HIDDEN, 10**5, 0, "all F32")
    return Model(module, Letters(), info)


def matrices(module: nn.Module, seed: int, rank: int, paths: Iterable[str] | None = None) -> Matrices:
    """Of all layers, or those at ``paths``; large enough to change the best tokens."""
    targets = find_targets(module)
    key = mx.random.key(seed)
    made: Matrices = {}
    for path in paths if paths is not None else targets:
        key, of_a, of_b = mx.random.split(key, 3)
        a, b = targets[path].shapes(rank)
        width = 9.0 if targets[path].kind == "embedding" else float(targets[path].n_in)
        made[path] = mx.random.normal(a, key=of_a) / width**0.5, mx.random.normal(b, key=of_b) / rank**0.5
    mx.eval(made)
    return made


def adapter(
    module: nn.Module,
    seed: int,
    rank: int,
    scale: float = 0.5,
    paths: Iterable[str] | None = None,
    in_head: bool = False,
) -> Adapter:
    """One that was never a file."""
    dtypes = {path: target.dtype for path, target in find_targets(module).items()}
    parts = {
        path: LowRank(a.astype(dtypes[path]), b.astype(dtypes[path]), scale, in_head)
        for path, (a, b) in matrices(module, seed, rank, paths).items()
    }
    return Adapter("", digest_of(parts, ()), MappingProxyType(parts))


_MERGED_EXPERTS = {"mlp.switch_mlp": "mlp.experts", "block_sparse_moe.switch_mlp": "mlp.experts"}


def gguf_tensors(kind: Kind, module: nn.Module, made: Matrices) -> Tensors:
    """As llama.cpp's convert_lora_to_gguf.py would name and turn them."""
    names = gguf.get_tensor_name_map(kind.arch, module.args.num_hidden_layers)
    tensors: Tensors = {}
    for path, (a, b) in made.items():
        hf_path = path
        for ours, theirs in _MERGED_EXPERTS.items():
            hf_path = hf_path.replace(ours, theirs)
        name = names.get_name(f"{hf_path}.weight", (".weight",))
        assert name, path
        stored_a = np.array(a) if "embed_tokens" in path else np.array(a).swapaxes(-1, -2)
        stored_b = np.array(b).swapaxes(-1, -2)
        if kind.permuted and (match := re.search(r"attn_([qk])\.", name)):
            args = module.args
            heads = args.num_attention_heads if match[1] == "q" else args.num_key_value_heads
            halves = stored_b.reshape(heads, 2, -1, stored_b.shape[-1])
            stored_b = halves.swapaxes(1, 2).reshape(stored_b.shape)
        tensors |= {f"{name}.lora_a": stored_a, f"{name}.lora_b": stored_b}
    return tensors


def write_gguf(
    path: Path,
    tensors: Mapping[str, np.ndarray[Any, Any]],
    arch: str | gguf.MODEL_ARCH = "llama",
    quantize: Type = Type.F32,
    **keys: Any,
) -> Path:
    """``keys`` beside the usual ones or in their place, ``__`` for a full stop; None leaves one out."""
    metadata = {"general__type": "adapter", "adapter__type": "lora", "adapter__lora__alpha": 8.0, **keys}
    writer = gguf.GGUFWriter(path, arch if isinstance(arch, str) else MODEL_ARCH_NAMES[arch])
    for key, value in metadata.items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_int32}.get(type(value))
        if add:
            add(key.replace("__", "."), value)
        elif value is not None:
            kind = gguf.GGUFValueType.ARRAY
            writer.add_key_value(key.replace("__", "."), value, kind, sub_type=gguf.GGUFValueType.UINT32)
    for name, values in tensors.items():
        if quantize == Type.F32:
            writer.add_tensor(name, np.ascontiguousarray(values))
        else:
            writer.add_tensor(
                name, gguf.quants.quantize(np.ascontiguousarray(values), quantize), raw_dtype=quantize
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_mlx(folder: Path, made: Matrices, scale: float = 2.0, **settings: Any) -> Path:
    """As mlx-lm's ``lora`` command saves it."""
    folder.mkdir(exist_ok=True)
    rank = next(iter(made.values()))[0].shape[-1]
    parameters = {"rank": rank, "scale": scale, "dropout": 0.0}
    defaults = {"fine_tune_type": "lora", "num_layers": -1, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps({**defaults, **settings}))
    tensors = {}
    for path, (a, b) in made.items():
        experts = a.ndim == 3
        tensors[f"{path}.lora_a"] = mx.contiguous(a.swapaxes(-1, -2)) if experts else a
        tensors[f"{path}.lora_b"] = mx.contiguous(b.swapaxes(-1, -2)) if experts else b
    mx.save_safetensors(str(folder / "adapters.safetensors"), tensors)
    return folder


def write_peft(
    folder: Path, made: Matrices, more: Mapping[str, mx.array] | None = None, **settings: Any
) -> Path:
    """As PEFT's ``save_pretrained`` saves it."""
    folder.mkdir(exist_ok=True)
    rank = next(iter(made.values()))[0].shape[-1]
    defaults = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "someone/tiny",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.1,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "megatron_core": "megatron.core",
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "target_modules": ["q_proj"],
        "use_dora": False,
        "use_rslora": False,
    }
    (folder / "adapter_config.json").write_text(json.dumps({**defaults, **settings}))
    tensors = dict(more or {})
    for path, (a, b) in made.items():
        ends = (
            ("lora_embedding_A", "lora_embedding_B")
            if "embed" in path
            else ("lora_A.weight", "lora_B.weight")
        )
        for end, values in zip(ends, (a, b), strict=True):
            tensors[f"base_model.model.{path}.{end}"] = mx.contiguous(values.T)
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), tensors)
    return folder
