"""One entry for every architecture: which mlx-lm class, its configuration, its tensor names.

Names and conventions are those of llama.cpp's converter (``gguf/tensor_mapping.py``, ``conversion/``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.model_file import ModelFile

Config = dict[str, Any]

ENCODERS = "mlxserver.models.encoders"
"""Where the classes are that mlx-lm has not."""

_BLOCK = re.compile(r"blk\.(?P<number>\d+)\.(?P<part>.+)")

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
_SINKS = "self_attn.sinks"
"""A parameter by itself, not a module with a ``weight``."""
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_DENSE = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _experts(router: str, experts: str) -> dict[str, str]:
    parts = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    names = {f"ffn_{part}_exps": f"{experts}.{name}" for part, name in parts.items()}
    return {"ffn_gate_inp": router, **names}


@dataclass(frozen=True, slots=True)
class Architecture:
    """How a GGUF architecture becomes a model of ``<package>.<model_type>``.

    ``top`` maps the names of tensors outside layers to module paths, ``layer`` those within ``blk.N`` to
    module paths within ``model.layers.N``.
    ``permuted``: the rows of queries and keys are in the order of ggml's interleaved rotary embedding.
    ``norm_offset``: norms are stored as the class's weight plus this.
    ``partial_rope``: the rotary embedding may turn only the first dimensions of a head.
    """

    model_type: str
    layer: Mapping[str, str]
    config: Callable[[ModelFile], Config] = lambda file: {}
    top: Mapping[str, str] = field(default_factory=lambda: _TOP)
    package: str = "mlx_lm.models"
    permuted: bool = False
    norm_offset: float = 0.0
    partial_rope: bool = False

    @property
    def is_encoder(self) -> bool:
        return self.package == ENCODERS

    @property
    def class_module(self) -> str:
        return f"{self.package}.{self.model_type}"


def lookup(file: ModelFile) -> Architecture:
    name = file.architecture
    if name == "llama" and file.hyperparameters.get("expert_count"):
        return MIXTRAL
    if name not in ARCHITECTURES:
        raise ModelError(
            f"the model architecture {name!r} is not supported (known: {', '.join(sorted(ARCHITECTURES))})"
        )
    return ARCHITECTURES[name]


def model_config(file: ModelFile, architecture: Architecture) -> Config:
    """What the class's ``ModelArgs.from_dict`` reads; keys it has no use for are dropped there."""
    base = _base_config(file, architecture.model_type)
    turned = file.hyperparameters.count("rope.dimension_count", base["head_dim"])
    if (
        turned % 2
        or turned > base["head_dim"]
        or (turned < base["head_dim"] and not architecture.partial_rope)
    ):
        raise ModelError(f"{file.path}: {turned} rotary dimensions for heads of {base['head_dim']}")
    return {**base, **architecture.config(file)}


def module_path(tensor: str, architecture: Architecture) -> str:
    """``blk.3.attn_q.weight`` → ``model.layers.3.self_attn.q_proj.weight``; empty for an unknown tensor."""
    stem, _, suffix = tensor.rpartition(".")
    block = _BLOCK.fullmatch(stem)
    if block:
        path = architecture.layer.get(block["part"])
        if path == _SINKS:
            return f"model.layers.{block['number']}.{path}"
        return f"model.layers.{block['number']}.{path}.{suffix}" if path else ""
    return f"{architecture.top[stem]}.{suffix}" if stem in architecture.top else ""


def _base_config(file: ModelFile, model_type: str) -> Config:
    kv = file.hyperparameters
    heads, hidden = kv.count("attention.head_count"), kv.count("embedding_length")
    head_dim = kv.count("attention.key_length", max(hidden // heads, 1))
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": _layer_count(file),
        "intermediate_size": kv.count("feed_forward_length", 1),
        "num_attention_heads": heads,
        "num_key_value_heads": kv.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        # encoders have the other kind of norm
        "rms_norm_eps": kv.number("attention.layer_norm_rms_epsilon", kv.get("attention.layer_norm_epsilon")),
        "vocab_size": _vocabulary_size(file),
        "max_position_embeddings": kv.count("context_length"),
        "rope_theta": kv.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def _layer_count(file: ModelFile) -> int:
    """The block count, which must agree with the tensors before a module of that size is built."""
    count = file.hyperparameters.count("block_count")
    found = {name.split(".", 2)[1] for name in file.tensors if name.startswith("blk.")}
    if found != {str(number) for number in range(min(count, len(found) + 1))}:
        raise ModelError(f"{file.path}: {count} layers are announced, the tensors are of {len(found)}")
    return count


def _vocabulary_size(file: ModelFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.path}: there is no token embedding (token_embd.weight)")
    return embedding.shape[0]


def _expert_counts(file: ModelFile) -> Config:
    kv = file.hyperparameters
    n_experts, n_used = kv.count("expert_count"), kv.count("expert_used_count")
    if n_used > n_experts:
        raise ModelError(f"{file.path}: {n_used} of {n_experts} experts are to be used")
    return {"num_local_experts": n_experts, "num_experts": n_experts, "num_experts_per_tok": n_used}


def _qwen_moe(file: ModelFile) -> Config:
    kv, counts = file.hyperparameters, _expert_counts(file)
    return {
        **counts,
        "moe_intermediate_size": kv.count(
            "expert_feed_forward_length",
            max(kv.count("feed_forward_length", 1) // counts["num_experts_per_tok"], 1),
        ),
        "shared_expert_intermediate_size": kv.count(
            "expert_shared_feed_forward_length", kv.count("feed_forward_length", 1)
        ),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }


def _query_scalar(file: ModelFile, layers_of_27b: int) -> float:
    """Gemma's attention scale is the head size, but in the 27B models the width of a head's share."""
    kv = file.hyperparameters
    heads, hidden = kv.count("attention.head_count"), kv.count("embedding_length")
    if kv.count("block_count") == layers_of_27b:
        return hidden / heads
    return kv.count("attention.key_length", max(hidden // heads, 1))


def _gemma2(file: ModelFile) -> Config:
    kv = file.hyperparameters
    return {
        "query_pre_attn_scalar": _query_scalar(file, 46),
        "attn_logit_softcapping": kv.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": kv.number("final_logit_softcapping", 30.0),
    }


def _gemma3(file: ModelFile) -> Config:
    kv = file.hyperparameters
    if kv.number("final_logit_softcapping", 0.0):
        raise ModelError("logit soft-capping is not supported for the architecture 'gemma3'")
    window = kv.count("attention.sliding_window") if kv.get("attention.sliding_window") else 0
    pattern = kv.count("attention.sliding_window_pattern", 6) if window else 1
    if pattern > kv.count("block_count"):
        raise ModelError(f"{file.path}: every layer is a sliding window, which is not supported")
    return {
        "query_pre_attn_scalar": _query_scalar(file, 62),
        "sliding_window": window,
        "sliding_window_pattern": pattern,
        "rope_local_base_freq": kv.number("rope.freq_base_swa", 10000.0),
    }


def _phi3(file: ModelFile) -> Config:
    kv = file.hyperparameters
    head_dim = kv.count("embedding_length") / kv.count("attention.head_count")
    context = kv.count("context_length")
    return {
        "partial_rotary_factor": kv.count("rope.dimension_count", int(head_dim)) / head_dim,
        "original_max_position_embeddings": kv.count("rope.scaling.original_context_length", context),
    }


def _granite(file: ModelFile) -> Config:
    kv = file.hyperparameters
    if kv.get("rope.scaling.finetuned") is False:
        raise ModelError("granite without rotary embedding is not supported")
    head_dim = kv.count("embedding_length") / kv.count("attention.head_count")
    return {
        "logits_scaling": kv.number("logit_scale"),
        "embedding_multiplier": kv.number("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": kv.number("residual_scale", 0.0) or 1.0,
        "attention_multiplier": kv.number("attention.scale", 0.0) or head_dim**-0.5,
    }


def _gpt_oss(file: ModelFile) -> Config:
    kv, n_layers = file.hyperparameters, _layer_count(file)
    pattern = kv.count("attention.sliding_window_pattern", 2)
    layer_types = [
        "full_attention" if i % pattern == pattern - 1 else "sliding_attention" for i in range(n_layers)
    ]
    if len(set(layer_types)) < 2:
        raise ModelError(f"{file.path}: a gpt-oss model needs layers with and without a sliding window")
    return {
        **_expert_counts(file),
        "intermediate_size": kv.count("expert_feed_forward_length"),
        "sliding_window": kv.count("attention.sliding_window"),
        "layer_types": layer_types,
    }


_ENCODER_TOP = {
    "token_embd": "model.embed_tokens",
    "token_types": "model.embed_types",
    "position_embd": "model.embed_positions",
    "token_embd_norm": "model.embed_norm",
}
_ENCODER_LAYER = {
    **{name: path for name, path in _ATTENTION.items() if not name.endswith("norm")},
    **_DENSE,
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output_norm": "attention_norm",
    "layer_output_norm": "output_norm",
}


def _encoder(file: ModelFile) -> Config:
    if file.metadata.get(f"{file.architecture}.attention.causal", True):
        raise ModelError(f"{file.path}: an encoder whose attention is causal is not supported")
    types = file.tensors.get("token_types.weight")
    return {
        "layer_norm_eps": file.hyperparameters.number("attention.layer_norm_epsilon"),
        "type_vocab_size": types.shape[0] if types else 0,
        "tie_word_embeddings": False,
        "fused_qkv": "blk.0.attn_qkv.weight" in file.tensors,
        "bias": "blk.0.ffn_up.bias" in file.tensors,
        "rope_theta": 0.0,
    }


def _nomic_bert(file: ModelFile) -> Config:
    theta = file.hyperparameters.number("rope.freq_base", 10000.0)
    return {**_encoder(file), "hidden_act": "swiglu", "rope_theta": theta}


def _encoder_architecture(config: Callable[[ModelFile], Config]) -> Architecture:
    return Architecture("bert", _ENCODER_LAYER, config, top=_ENCODER_TOP, package=ENCODERS)


_LLAMA = Architecture("llama", {**_ATTENTION, **_DENSE}, permuted=True)
MIXTRAL = Architecture(
    "mixtral",
    {**_ATTENTION, **_experts("block_sparse_moe.gate", "block_sparse_moe.switch_mlp")},
    _expert_counts,
    permuted=True,
)
_MOE = _experts("mlp.gate", "mlp.switch_mlp")
_GPT_OSS_LAYER = {
    **_ATTENTION,
    **_experts("mlp.router", "mlp.experts"),
    "attn_sinks": _SINKS,
    "post_attention_norm": "post_attention_layernorm",
}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": _LLAMA,
    "smollm3": Architecture("smollm3", {**_ATTENTION, **_DENSE}, permuted=True),
    "granite": Architecture("granite", {**_ATTENTION, **_DENSE}, _granite, permuted=True),
    "qwen2": Architecture("qwen2", {**_ATTENTION, **_DENSE}),
    "qwen3": Architecture("qwen3", {**_ATTENTION, **_QK_NORM, **_DENSE}),
    "qwen2moe": Architecture(
        "qwen2_moe",
        {**_ATTENTION, **_MOE, **_SHARED_EXPERT},
        _qwen_moe,
    ),
    "qwen3moe": Architecture("qwen3_moe", {**_ATTENTION, **_QK_NORM, **_MOE}, _qwen_moe),
    "gemma": Architecture("gemma", {**_ATTENTION, **_DENSE}, norm_offset=1.0),
    "gemma2": Architecture("gemma2", {**_ATTENTION, **_FOUR_NORMS, **_DENSE}, _gemma2, norm_offset=1.0),
    "gemma3": Architecture(
        "gemma3_text", {**_ATTENTION, **_QK_NORM, **_FOUR_NORMS, **_DENSE}, _gemma3, norm_offset=1.0
    ),
    "phi3": Architecture(
        "phi3",
        {
            **_ATTENTION,
            "attn_qkv": "self_attn.qkv_proj",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
        _phi3,
        partial_rope=True,
    ),
    "gpt-oss": Architecture("gpt_oss", _GPT_OSS_LAYER, _gpt_oss),
    "bert": _encoder_architecture(_encoder),
    "nomic-bert": _encoder_architecture(_nomic_bert),
}
