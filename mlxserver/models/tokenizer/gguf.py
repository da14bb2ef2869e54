"""A tokenizer from the ``tokenizer.ggml.*`` keys of a GGUF file."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mlxserver.models.errors import ModelError
from mlxserver.models.tokenizer.bpe import BpeEncoder
from mlxserver.models.tokenizer.pretokenizer import PRE_TOKENIZERS, PreTokenizer
from mlxserver.models.tokenizer.special_ids import detect_special_ids
from mlxserver.models.tokenizer.spm import SpmEncoder
from mlxserver.models.tokenizer.tokenizer import VocabTokenizer
from mlxserver.models.tokenizer.unigram import UnigramEncoder
from mlxserver.models.tokenizer.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    RSTRIP,
    TOKEN_TYPES,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
)
from mlxserver.models.tokenizer.wordpiece import WordPieceEncoder

log = logging.getLogger(__name__)

_IDS = {
    "bos_id": ("bos_token_id",),
    "eos_id": ("eos_token_id",),
    "sep_id": ("seperator_token_id",),
    "eot_id": ("eot_token_id",),
    "eom_id": ("eom_token_id",),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}
"""Keys of one id; of two that are set the last, deprecated one wins."""

_PHI3_KEPT_SPACES = ("<unk>", "<s>", "<|endoftext|>")


def from_gguf(metadata: Mapping[str, Any]) -> VocabTokenizer:
    """``metadata`` holds whole keys, strings as ``str`` or ``bytes``.

    Raises ModelError where the vocabulary is missing, damaged or of a kind that is not supported."""
    model = _text(_required(metadata, "model"))
    if model == "llama":
        vocab = _vocabulary(metadata, bos_id=1, eos_id=2)
        vocab.escape_spaces = vocab.add_space_prefix = vocab.add_bos = True
        _read_special(vocab, metadata)
        if min(map(vocab.byte_token, range(256))) < 0:
            log.warning("the vocabulary has no token for some bytes; unknown characters of a prompt are lost")
        return VocabTokenizer(vocab, SpmEncoder(vocab))
    if model == "bert":
        return _wordpiece(metadata)
    if model == "t5":
        return _unigram(metadata)
    if model not in ("gpt2", "gemma4"):
        raise ModelError(
            f"tokenizer type '{model}' is not supported (supported: bert, gemma4, gpt2, llama, t5)"
        )
    pre = _pre_tokenizer(metadata, "gemma4" if model == "gemma4" else "")
    default = -1 if model == "gemma4" else 11
    vocab = _vocabulary(metadata, bos_id=min(default, pre.bos_id), eos_id=default)
    vocab.escape_spaces = not pre.byte_level
    vocab.clean_spaces = pre.clean_spaces
    vocab.add_bos = pre.add_bos
    _read_special(vocab, metadata)
    vocab.add_bos |= pre.whole_newlines
    merges = [_text(merge) for merge in _required(metadata, "merges")]
    return VocabTokenizer(vocab, BpeEncoder(vocab, merges, pre))


def _wordpiece(metadata: Mapping[str, Any]) -> VocabTokenizer:
    vocab = _vocabulary(metadata, bos_id=101, eos_id=-1)
    vocab.sep_id = 102
    vocab.escape_spaces = vocab.clean_spaces = True
    vocab.add_bos = vocab.add_sep = vocab.ends_with_sep = True
    _read_special(vocab, metadata)
    unk_id = metadata.get("tokenizer.ggml.unknown_token_id", 100)
    lowercase = bool(metadata.get("tokenizer.ggml.normalizer.lowercase", True))
    strips = bool(metadata.get("tokenizer.ggml.normalizer.strip_accents", lowercase))
    encoder = WordPieceEncoder(vocab, unk_id if unk_id < len(vocab) else -1, lowercase, strips)
    return VocabTokenizer(vocab, encoder)


def _unigram(metadata: Mapping[str, Any]) -> VocabTokenizer:
    vocab = _vocabulary(metadata, bos_id=-1, eos_id=1)
    vocab.escape_spaces = vocab.add_eos = True
    _read_special(vocab, metadata)
    unk_id = metadata.get("tokenizer.ggml.unknown_token_id", 2)
    charsmap = bytes(value % 256 for value in metadata.get("tokenizer.ggml.precompiled_charsmap", ()))
    merges_spaces = bool(metadata.get("tokenizer.ggml.remove_extra_whitespaces", False))
    try:
        encoder = UnigramEncoder(vocab, unk_id, charsmap, merges_spaces)
    except Exception as error:  # The library raises bare Exception.
        raise ModelError(f"the vocabulary cannot be used: {error}") from error
    return VocabTokenizer(vocab, encoder)


def _pre_tokenizer(metadata: Mapping[str, Any], implied: str) -> PreTokenizer:
    name = implied or _text(metadata.get("tokenizer.ggml.pre", ""))
    if not name:
        log.warning("missing pre-tokenizer type, using: 'default'; generation quality will be degraded")
        name = "default"
    if name not in PRE_TOKENIZERS:
        raise ModelError(f"unknown pre-tokenizer type: '{name}'")
    return PRE_TOKENIZERS[name]


def _vocabulary(metadata: Mapping[str, Any], bos_id: int, eos_id: int) -> Vocabulary:
    tokens = _required(metadata, "tokens")
    texts = [_text(token) or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    types = _column(metadata, "token_type", len(texts))
    scores = _column(metadata, "scores", len(texts))
    attrs = [NORMAL] * len(texts)
    if types:
        attrs = [TOKEN_TYPES[kind] if 0 <= kind < len(TOKEN_TYPES) else 0 for kind in types]
    vocab = Vocabulary(texts, attrs, scores or [0.0] * len(texts), bos_id=bos_id, eos_id=eos_id)
    _check_bytes(vocab)
    return vocab


def _check_bytes(vocab: Vocabulary) -> None:
    for token, attr in enumerate(vocab.attrs):
        if attr & BYTE and vocab.byte_token_value(token) < 0:
            raise ModelError(f"token {token} is a byte by its type, but its text is {vocab.texts[token]!r}")


def _read_special(vocab: Vocabulary, metadata: Mapping[str, Any]) -> None:
    for name, keys in _IDS.items():
        if getattr(vocab, name) >= len(vocab):
            setattr(vocab, name, -1)
        for key in keys:
            _read_id(vocab, metadata, name, key)
    for name, key in (
        ("add_bos", "add_bos_token"),
        ("add_eos", "add_eos_token"),
        ("add_sep", "add_sep_token"),
        ("add_space_prefix", "add_space_prefix"),
    ):
        if (value := metadata.get(f"tokenizer.ggml.{key}")) is not None:
            setattr(vocab, name, bool(value))
    detect_special_ids(vocab)
    name = _text(metadata.get("general.name", "")).lower()
    if "phi-3" in name or "phi3" in name:
        _strip_after_special(vocab)


def _read_id(vocab: Vocabulary, metadata: Mapping[str, Any], name: str, key: str) -> None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return
    if 0 <= value < len(vocab):
        setattr(vocab, name, int(value))
    else:
        log.warning("bad special token: '%s' = %d, using default id %d", key, value, getattr(vocab, name))


def _strip_after_special(vocab: Vocabulary) -> None:
    for token, attr in enumerate(vocab.attrs):
        special = attr & (CONTROL | USER_DEFINED | UNKNOWN) or vocab.texts[token] == "</s>"
        if special and vocab.texts[token] not in _PHI3_KEPT_SPACES:
            vocab.attrs[token] |= RSTRIP


def _required(metadata: Mapping[str, Any], key: str) -> Any:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        raise ModelError(f"the model file has no tokenizer: 'tokenizer.ggml.{key}' is missing")
    return value


def _column(metadata: Mapping[str, Any], key: str, n_tokens: int) -> Sequence[Any]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return ()
    if len(values) < n_tokens:
        raise ModelError(f"'tokenizer.ggml.{key}' has {len(values)} entries for {n_tokens} tokens")
    plain: Sequence[Any] = values.tolist() if hasattr(values, "tolist") else values
    return plain


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
