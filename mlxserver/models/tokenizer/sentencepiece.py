"""A tokenizer from SentencePiece's own file, as llama.cpp's converter turns it into a GGUF vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxserver.models.errors import ModelError
from mlxserver.models.tokenizer.gguf import from_gguf
from mlxserver.models.tokenizer.tokenizer import VocabTokenizer
from mlxserver.models.tokenizer.vocabulary import SPACE

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_ADDED_SCORE = -1000.0


def from_sentencepiece(path: Path, config: Mapping[str, Any], eos_ids: Sequence[int]) -> VocabTokenizer:
    """``config`` is tokenizer_config.json; of ``eos_ids`` the first is the EOS token."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor()
    try:
        model.Load(str(path))
    except (RuntimeError, OSError) as error:
        raise ModelError(f"{path}: {error}") from error
    rows = [_row(model, token) for token in range(model.GetPieceSize())]
    if any(kind == _NORMAL and not score.is_integer() for _, score, kind in rows):
        raise ModelError(f"{path}: a SentencePiece model of the kind 'unigram' is not supported")
    for token, text, special in sorted(_added(config)):
        rows += [(f"[PAD{i}]", _ADDED_SCORE, _UNUSED) for i in range(len(rows), token + 1)]
        shown = text if special else text.replace(SPACE, " ")
        rows[token] = (shown, _ADDED_SCORE, _CONTROL if special else _USER_DEFINED)
    return from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [text for text, _, _ in rows],
            "tokenizer.ggml.scores": [score for _, score, _ in rows],
            "tokenizer.ggml.token_type": [kind for _, _, kind in rows],
            "tokenizer.ggml.bos_token_id": _or_none(model.bos_id()),
            "tokenizer.ggml.eos_token_id": _or_none([*eos_ids, model.eos_id()][0]),
            "tokenizer.ggml.add_bos_token": config.get("add_bos_token"),
            "tokenizer.ggml.add_eos_token": config.get("add_eos_token"),
            "tokenizer.ggml.add_space_prefix": model.EncodeAsPieces("a")[0].startswith(SPACE),
        }
    )


def _row(model: Any, token: int) -> tuple[str, float, int]:
    text, score = model.IdToPiece(token), model.GetScore(token)
    if model.IsUnknown(token):
        return text, score, _UNKNOWN
    if model.IsControl(token):
        return text, score, _CONTROL
    if model.IsUnused(token):
        return text, score, _UNUSED
    return text, score, _BYTE if model.IsByte(token) else _NORMAL


def _added(config: Mapping[str, Any]) -> Iterator[tuple[int, str, bool]]:
    """(id, text, special) of the tokens that tokenizer_config.json adds or changes."""
    for token, added in (config.get("added_tokens_decoder") or {}).items():
        yield int(token), added["content"], bool(added.get("special"))


def _or_none(token: int) -> int | None:
    return token if token >= 0 else None
