"""Tiny GGUF files as llama.cpp's converter would write them, from random mlx-lm models.

Tensor names come from the gguf package's own map of Hugging Face names, so that the loader's tables are not
tested against themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.constants import GGMLQuantizationType as Type
from mlx.utils import tree_flatten

from tests.models import tiny

_MERGED_EXPERTS = {
    "block_sparse_moe.switch_mlp.gate_proj": "block_sparse_moe.experts.w1",
    "block_sparse_moe.switch_mlp.down_proj": "block_sparse_moe.experts.w2",
    "block_sparse_moe.switch_mlp.up_proj": "block_sparse_moe.experts.w3",
    "mlp.switch_mlp": "mlp.experts",
    "self_attn.sinks": "self_attn.sinks.weight",
}


@dataclass(frozen=True)
class Kind:
    """A random model and the keys and transforms by which it is stored."""

    arch: MODEL_ARCH
    build: Callable[[], nn.Module]
    keys: Mapping[str, Any] = field(default_factory=dict)
    permuted: bool = False
    norm_offset: float = 0.0
    extra: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    """Further 32-bit tensors by their GGUF name."""


def _dense(model_type: str, **config: Any) -> nn.Module:
    common = {"head_dim": 8, "max_position_embeddings": 512, "rope_theta": 10000.0}
    return tiny.build(model_type, **{**tiny.COMMON, **common, **config})


def _gemma(model_type: str, **config: Any) -> nn.Module:
    return _dense(model_type, head_dim=16, query_pre_attn_scalar=16, num_hidden_layers=2, **config)


def _llama3() -> nn.Module:
    scaling = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
    return tiny.llama(rope_scaling=scaling, max_position_embeddings=512)


def _llama3_factors() -> np.ndarray[Any, Any]:
    """What the converter computes for ``_llama3``: a factor for each pair of dimensions."""
    wavelength = 2 * np.pi * 10000.0 ** (np.arange(0, 8, 2) / 8)
    smooth = (64 / wavelength - 1) / (4 - 1)
    middle = 1 / ((1 - smooth) / 8 + smooth)
    return np.where(wavelength < 16, 1.0, np.where(wavelength > 64, 8.0, middle)).astype(np.float32)


_LONG, _SHORT = [1.0, 1.5, 2.0, 4.0], [1.0, 1.1, 1.2, 1.3]
_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
_YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 128,
}
_QWEN_MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
_EXPERT_KEYS = {"expert_count": 4, "expert_used_count": 2}

KINDS: dict[str, Kind] = {
    "llama": Kind(MODEL_ARCH.LLAMA, tiny.llama, permuted=True),
    "llama-tied": Kind(MODEL_ARCH.LLAMA, lambda: tiny.llama(tie_word_embeddings=True), permuted=True),
    "llama-bias": Kind(
        MODEL_ARCH.LLAMA, lambda: tiny.llama(attention_bias=True, mlp_bias=True), permuted=True
    ),
    "llama3-rope": Kind(
        MODEL_ARCH.LLAMA, _llama3, permuted=True, extra={"rope_freqs.weight": _llama3_factors()}
    ),
    "llama-linear-rope": Kind(
        MODEL_ARCH.LLAMA,
        lambda: tiny.llama(rope_scaling={"type": "linear", "factor": 2.0}),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
        permuted=True,
    ),
    "mixtral": Kind(MODEL_ARCH.LLAMA, tiny.mixtral, _EXPERT_KEYS, permuted=True),
    "smollm3": Kind(MODEL_ARCH.SMOLLM3, lambda: _dense("smollm3", num_hidden_layers=4), permuted=True),
    "granite": Kind(
        MODEL_ARCH.GRANITE,
        lambda: _dense(
            "granite",
            attention_bias=False,
            mlp_bias=False,
            logits_scaling=4.0,
            attention_multiplier=0.25,
            embedding_multiplier=3.0,
            residual_multiplier=0.5,
        ),
        {"logit_scale": 4.0, "attention.scale": 0.25, "embedding_scale": 3.0, "residual_scale": 0.5},
        permuted=True,
    ),
    "qwen2": Kind(MODEL_ARCH.QWEN2, lambda: _dense("qwen2")),
    "qwen2-yarn": Kind(MODEL_ARCH.QWEN2, lambda: _dense("qwen2", rope_scaling=_YARN), _YARN_KEYS),
    "qwen3": Kind(MODEL_ARCH.QWEN3, tiny.qwen3),
    "qwen2moe": Kind(
        MODEL_ARCH.QWEN2MOE,
        lambda: _dense("qwen2_moe", **_QWEN_MOE),
        {**_EXPERT_KEYS, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32},
    ),
    "qwen3moe": Kind(
        MODEL_ARCH.QWEN3MOE,
        lambda: _dense("qwen3_moe", **_QWEN_MOE),
        {**_EXPERT_KEYS, "expert_feed_forward_length": 32},
    ),
    "gemma": Kind(MODEL_ARCH.GEMMA, lambda: _gemma("gemma"), norm_offset=1.0),
    "gemma2": Kind(
        MODEL_ARCH.GEMMA2,
        lambda: _gemma("gemma2", attn_logit_softcapping=20.0, final_logit_softcapping=10.0),
        {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0, "attention.sliding_window": 512},
        norm_offset=1.0,
    ),
    "gemma3": Kind(
        MODEL_ARCH.GEMMA3,
        lambda: tiny.gemma3(num_hidden_layers=7, sliding_window_pattern=6, rope_theta=1000000.0),
        {"attention.sliding_window": tiny.WINDOW, "rope.freq_base": 1000000.0},
        norm_offset=1.0,
    ),
    "gemma3-linear-rope": Kind(
        MODEL_ARCH.GEMMA3,
        lambda: tiny.gemma3(
            num_hidden_layers=6,
            sliding_window_pattern=6,
            rope_theta=1000000.0,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
        {
            "attention.sliding_window": tiny.WINDOW,
            "rope.freq_base": 1000000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        norm_offset=1.0,
    ),
    "phi3-partial": Kind(
        MODEL_ARCH.PHI3, lambda: _dense("phi3", partial_rotary_factor=0.75), {"rope.dimension_count": 6}
    ),
    "phi3": Kind(MODEL_ARCH.PHI3, lambda: _dense("phi3"), {"rope.dimension_count": 8}),
    "phi3-longrope": Kind(
        MODEL_ARCH.PHI3,
        lambda: _dense(
            "phi3",
            rope_scaling={"type": "longrope", "long_factor": _LONG, "short_factor": _SHORT},
            original_max_position_embeddings=128,
        ),
        {
            "rope.dimension_count": 8,
            "rope.scaling.original_context_length": 128,
            # sqrt(1 + ln(512 / 128) / ln 128)
            "rope.scaling.attn_factor": 1.1338934190276817,
        },
        extra={
            "rope_factors_long.weight": np.array(_LONG, np.float32),
            "rope_factors_short.weight": np.array(_SHORT, np.float32),
        },
    ),
    "gpt-oss": Kind(
        MODEL_ARCH.GPT_OSS,
        lambda: tiny.gpt_oss(rope_scaling=_YARN),
        {
            **_EXPERT_KEYS,
            **_YARN_KEYS,
            "expert_feed_forward_length": 32,
            "attention.sliding_window": tiny.WINDOW,
        },
    ),
}


def write(path: Path, kind: Kind, quantize: Type = Type.F32, module: nn.Module | None = None) -> nn.Module:
    """Writes a model of ``kind``, its matrices in the type ``quantize`` where they fit; returns the model."""
    module = module or kind.build()
    writer = gguf.GGUFWriter(path, MODEL_ARCH_NAMES[kind.arch])
    _write_keys(writer, kind, module.args)
    _write_vocabulary(writer)
    for name, values in tensors(kind, module):
        _write_tensor(writer, name, values, quantize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return module


def tensors(kind: Kind, module: nn.Module) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """The tensors by their GGUF names, transformed as the converter does."""
    names = gguf.get_tensor_name_map(kind.arch, module.args.num_hidden_layers)
    for path, value in tree_flatten(module.parameters()):
        for ours, theirs in _MERGED_EXPERTS.items():
            path = path.replace(ours, theirs)
        name = names.get_name(path, (".weight", ".bias"))
        assert name, path
        yield name, _transformed(np.array(value), name, kind, module.args)
    yield from kind.extra.items()


def _transformed(values: np.ndarray[Any, Any], name: str, kind: Kind, args: Any) -> np.ndarray[Any, Any]:
    if kind.norm_offset and name.endswith("norm.weight"):
        return values + np.float32(kind.norm_offset)
    match = re.search(r"attn_([qk])\.", name)
    if kind.permuted and match:
        heads = args.num_attention_heads if match[1] == "q" else args.num_key_value_heads
        halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)
    if name.endswith("shexp.weight") and "gate_inp" in name:
        return values[0]
    return values


def _write_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray[Any, Any], kind: Type) -> None:
    if kind == Type.F32 or values.ndim < 2 or values.shape[-1] % GGML_QUANT_SIZES[kind][0]:
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    else:
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)


def _write_keys(writer: gguf.GGUFWriter, kind: Kind, args: Any) -> None:
    head_dim = getattr(args, "head_dim", None) or args.hidden_size // args.num_attention_heads
    writer.add_context_length(512)
    writer.add_embedding_length(args.hidden_size)
    writer.add_block_count(args.num_hidden_layers)
    writer.add_feed_forward_length(args.intermediate_size)
    writer.add_head_count(args.num_attention_heads)
    writer.add_head_count_kv(args.num_key_value_heads)
    writer.add_layer_norm_rms_eps(args.rms_norm_eps)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_file_type(0)
    for key, value in kind.keys.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(f"{MODEL_ARCH_NAMES[kind.arch]}.{key}", value)


def _write_vocabulary(writer: gguf.GGUFWriter) -> None:
    """The 256 bytes in GPT-2's spelling, the last of them as a control token for BOS and EOS."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    tokens = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(others))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens[:-1], "<|end|>"])
    writer.add_token_types([1] * 255 + [3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(255)
    writer.add_eos_token_id(255)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages }}")
    writer.add_string("general.sampling.sequence", "top_k;temperature")
    writer.add_float32("general.sampling.temp", 0.3)
    writer.add_int32("general.sampling.top_k", 7)


def logits(module: nn.Module, n_tokens: int = 40) -> mx.array:
    return module(mx.arange(n_tokens)[None] * 5 % tiny.VOCAB)
