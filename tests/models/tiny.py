"""Tiny random models of every cache kind: fixed weights, 32-bit floats, no files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path

VOCAB = 256
HIDDEN = 32
WINDOW = 16

COMMON = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
}


def build(model_type: str, seed: int = 0, **config: Any) -> nn.Module:
    """An mlx-lm model of ``model_type`` with random weights that depend on ``seed``.

    They are spread widely enough that the best token of a step is seldom a near tie.
    """
    arch = importlib.import_module(f"mlx_lm.models.{model_type}")
    args = arch.ModelArgs.from_dict({"model_type": model_type, **config})
    mx.random.seed(seed)
    module: nn.Module = arch.Model(args)
    module.update(tree_map_with_path(_spread, module.parameters()))
    module.eval()
    mx.eval(module.parameters())
    return module


def _spread(path: str, value: mx.array) -> mx.array:
    if not mx.issubdtype(value.dtype, mx.floating):
        return value
    if value.ndim == 1:
        return value.astype(mx.float32) + mx.random.uniform(-0.1, 0.1, value.shape)
    scale = 0.3 if "embed" in path or "head" in path else 2.0 / value.shape[-1] ** 0.5
    return mx.random.normal(value.shape) * scale


def llama(**config: Any) -> nn.Module:
    """Plain attention."""
    return build("llama", **{**COMMON, "tie_word_embeddings": False, **config})


def qwen3(**config: Any) -> nn.Module:
    """Plain attention with normed queries and keys."""
    return build("qwen3", **{**COMMON, **_QWEN3, **config})


_QWEN3 = {
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def mistral_sliding(**config: Any) -> nn.Module:
    """The llama class with a sliding window in every other layer."""
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
    return llama(**{**layers, **config})


def gemma3(**config: Any) -> nn.Module:
    """Sliding window in two of three layers, tied embeddings."""
    gemma = {
        "head_dim": 16,
        "num_hidden_layers": 3,
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 3,
    }
    module = build("gemma3_text", **{**COMMON, **gemma, **config})
    module.sanitize({})  # mlx-lm ties the embeddings where the weights have no lm_head
    return module


def gpt_oss(**config: Any) -> nn.Module:
    """Sliding window in every other layer, attention sinks, mixture of experts."""
    moe = {
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "rope_theta": 10000,
        "intermediate_size": 32,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    return build("gpt_oss", **{**COMMON, **moe, **config})


def mixtral(**config: Any) -> nn.Module:
    """Plain attention, mixture of experts."""
    return build("mixtral", **{**COMMON, "num_local_experts": 4, "rope_theta": 10000.0, **config})


def mamba2(**config: Any) -> nn.Module:
    """Recurrent state only."""
    ssm = {
        "num_heads": 4,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "state_size": 16,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
        "time_step_limit": (0.0, 100.0),
        "time_step_rank": "auto",
    }
    return build("mamba2", **{**ssm, **config})


def qwen3_next(**config: Any) -> nn.Module:
    """Three layers of gated delta state, then one of plain attention; mixture of experts."""
    hybrid = {
        "num_hidden_layers": 4,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 512,
        "head_dim": 16,
    }
    return build("qwen3_next", **{**COMMON, **hybrid, **config})


def falcon_h1(**config: Any) -> nn.Module:
    """Recurrent state and plain attention side by side in each layer."""
    hybrid = {
        "head_dim": 16,
        "mamba_d_ssm": 64,
        "mamba_d_head": 16,
        "mamba_n_heads": 4,
        "mamba_d_state": 16,
        "embedding_multiplier": 1.0,
        "lm_head_multiplier": 1.0,
        "key_multiplier": 1.0,
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
        "rope_theta": 10000.0,
    }
    return build("falcon_h1", **{**COMMON, **hybrid, **config})


def deepseek_v3(**config: Any) -> nn.Module:
    """Multi-head latent attention: the cache holds a latent and a rotary part."""
    mla = {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 32,
        "n_routed_experts": None,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": 2,
        "max_position_embeddings": 512,
    }
    return build("deepseek_v3", **{**COMMON, **mla, **config})


ALL: dict[str, Callable[..., nn.Module]] = {
    "llama": llama,
    "qwen3": qwen3,
    "mistral_sliding": mistral_sliding,
    "gemma3": gemma3,
    "gpt_oss": gpt_oss,
    "mixtral": mixtral,
    "mamba2": mamba2,
    "qwen3_next": qwen3_next,
    "falcon_h1": falcon_h1,
    "deepseek_v3": deepseek_v3,
}
"""Every builder by its name."""
