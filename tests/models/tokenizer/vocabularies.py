"""Vocabularies small enough to check by hand."""

from __future__ import annotations

from typing import Any

from mlxserver.models.tokenizer.pieces import byte_letters

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def bpe(
    merges: list[str], pre: str = "gpt-2", special: dict[str, int] | None = None, **keys: Any
) -> dict[str, Any]:
    """The 256 byte letters (ids 0-255), what the merges make, then ``special`` texts by token type."""
    made = ["".join(merge.split(" ")) for merge in merges]
    special = special or {}
    tokens = [*byte_letters(), *made, *special]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * (len(tokens) - len(special)) + list(special.values()),
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def spm(words: list[str], special: dict[str, int] | None = None, **keys: Any) -> dict[str, Any]:
    """<unk>, <s>, </s>, the 256 bytes (ids 3-258), ``words`` from the best to the worst, ``special``."""
    special = special or {}
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *words, *special]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words), *special.values()]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words))] + [-1000.0] * len(special)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }
