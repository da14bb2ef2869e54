"""BERT and its kin: every token sees every other one; norms follow the residual sums (post-norm).

The equations are those of Devlin et al. 2018. With ``rope_theta`` positions turn queries and keys instead of
being learned vectors, and ``swiglu`` gates the feed-forward part (both as in nomic-bert).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import gelu, gelu_approx, relu, silu
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import LayerNorm
from mlx.nn.layers.positional_encoding import RoPE

ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "gelu": gelu,
    "gelu_new": gelu_approx,
    "gelu_pytorch_tanh": gelu_approx,
    "relu": relu,
    "swiglu": silu,
}


@dataclass(frozen=True, slots=True)
class ModelArgs:
    """``rope_theta`` 0: learned positions. ``type_vocab_size`` 0: no embedding of sentence A and B."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    rope_theta: float = 0.0
    bias: bool = True
    fused_qkv: bool = False

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelArgs:
        known = {field.name for field in fields(cls)}
        args = cls(**{key: value for key, value in config.items() if key in known})
        if args.hidden_act not in ACTIVATIONS:
            raise ValueError(f"unknown activation {args.hidden_act!r}")
        if args.hidden_size % args.num_attention_heads:
            raise ValueError(f"{args.hidden_size} dimensions for {args.num_attention_heads} heads")
        return args


class Model(Module):
    """``hidden`` is all that there is: no logits, and nothing to keep between calls."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.args = args
        self.model = Trunk(args)

    def hidden(self, tokens: mx.array, lengths: mx.array) -> mx.array:
        """(B, L) tokens, of which row b has the first ``lengths[b]`` → (B, L, n_embd); the rest is noise."""
        return self.model(tokens, mx.arange(tokens.shape[1])[None] < lengths[:, None])

    def make_cache(self) -> list[Any]:
        """What mlx-lm asks a model for: a state for each layer that has one."""
        return []


class Trunk(Module):
    def __init__(self, args: ModelArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.embed_tokens = Embedding(args.vocab_size, args.hidden_size)
        if args.type_vocab_size:
            self.embed_types = Embedding(args.type_vocab_size, args.hidden_size)
        if not args.rope_theta:
            self.embed_positions = Embedding(args.max_position_embeddings, args.hidden_size)
        self.embed_norm = LayerNorm(args.hidden_size, args.layer_norm_eps)
        self.layers = [Layer(args) for _ in range(args.num_hidden_layers)]

    def __call__(self, tokens: mx.array, mask: mx.array) -> mx.array:
        """``mask`` (B, L): which tokens are part of the text. Every text is sentence A, as in llama.cpp."""
        hidden = self.embed_tokens(tokens)
        if "embed_types" in self:
            hidden = hidden + self.embed_types(mx.array([0]))
        if "embed_positions" in self:
            hidden = hidden + self.embed_positions(mx.arange(tokens.shape[1]))
        hidden = self.embed_norm(hidden)
        for layer in self.layers:
            hidden = layer(hidden, mask[:, None, None])
        result: mx.array = hidden
        return result


class Layer(Module):
    def __init__(self, args: ModelArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.self_attn = Attention(args)
        self.attention_norm = LayerNorm(args.hidden_size, args.layer_norm_eps)
        self.mlp = FeedForward(args)
        self.output_norm = LayerNorm(args.hidden_size, args.layer_norm_eps)

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        x = self.attention_norm(x + self.self_attn(x, mask))
        output: mx.array = self.output_norm(x + self.mlp(x))
        return output


class Attention(Module):
    def __init__(self, args: ModelArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        size = args.hidden_size
        self._n_heads = args.num_attention_heads
        for name in ("qkv_proj",) if args.fused_qkv else ("q_proj", "k_proj", "v_proj"):
            self[name] = Linear(size, 3 * size if args.fused_qkv else size, bias=args.bias)
        self.o_proj = Linear(size, size, bias=args.bias)
        if args.rope_theta:
            self.rope = RoPE(size // self._n_heads, base=args.rope_theta)

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        """(B, L, n_embd), (B, 1, 1, L) → (B, L, n_embd)."""
        q, k, v = (self._heads(part) for part in self._project(x))
        if "rope" in self:
            q, k = self.rope(q), self.rope(k)
        mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask=mask)
        output: mx.array = self.o_proj(mixed.swapaxes(1, 2).flatten(2))
        return output

    def _project(self, x: mx.array) -> list[mx.array]:
        if "qkv_proj" in self:
            return list(mx.split(self.qkv_proj(x), 3, axis=-1))
        return [self.q_proj(x), self.k_proj(x), self.v_proj(x)]

    def _heads(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:2], self._n_heads, -1).swapaxes(1, 2)


class FeedForward(Module):
    def __init__(self, args: ModelArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._activation = ACTIVATIONS[args.hidden_act]
        self.up_proj = Linear(args.hidden_size, args.intermediate_size, bias=args.bias)
        if args.hidden_act == "swiglu":
            self.gate_proj = Linear(args.hidden_size, args.intermediate_size, bias=args.bias)
        self.down_proj = Linear(args.intermediate_size, args.hidden_size, bias=args.bias)

    def __call__(self, x: mx.array) -> mx.array:
        up = self.up_proj(x)
        inner = self._activation(self.gate_proj(x)) * up if "gate_proj" in self else self._activation(up)
        output: mx.array = self.down_proj(inner)
        return output
