"""A tokenizer from a model folder: tokenizer.json, or else SentencePiece's tokenizer.model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from mlxserver.models.errors import ModelError
from mlxserver.models.tokenizer.backend import token_ids
from mlxserver.models.tokenizer.sentencepiece import from_sentencepiece
from mlxserver.models.tokenizer.special_ids import detect_special_ids
from mlxserver.models.tokenizer.tokenizer import VocabTokenizer
from mlxserver.models.tokenizer.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
)


def from_folder(path: Path) -> VocabTokenizer:
    """Raises ModelError where there is no tokenizer, it is damaged, or its kind is not supported."""
    config = _read_json(path / "tokenizer_config.json")
    if (path / "tokenizer.json").exists():
        return _from_tokenizer_json(path, config)
    if (path / "tokenizer.model").exists():
        return from_sentencepiece(path / "tokenizer.model", config, _eos_ids(path))
    raise ModelError(f"{path}: no tokenizer.json and no tokenizer.model")


class _FolderEncoder:
    """The file's own pipeline, special tokens included."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.engine = _load(path)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        engine = self.engine if parse_special else self._plain
        return token_ids(engine, text)

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        # A second engine, since the switch is no argument of encode and other threads encode meanwhile.
        engine = _load(self._path)
        engine.encode_special_tokens = True
        return engine


def _load(path: Path) -> tokenizers.Tokenizer:
    try:
        engine = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises bare Exception.
        raise ModelError(f"{path}: {error}") from error
    engine.no_truncation()
    engine.no_padding()
    return engine


def _from_tokenizer_json(path: Path, config: Mapping[str, Any]) -> VocabTokenizer:
    encoder = _FolderEncoder(path / "tokenizer.json")
    engine = encoder.engine
    kind = type(engine.model).__name__
    if kind not in ("BPE", "Unigram", "WordPiece"):
        supported = "BPE, Unigram, WordPiece"
        raise ModelError(f"{path}: tokenizer type '{kind}' is not supported (supported: {supported})")
    vocab = _vocabulary(engine, _config_vocab_size(path))
    vocab.escape_spaces = not _is_byte_level(engine)
    vocab.clean_spaces = bool(config.get("clean_up_tokenization_spaces"))
    _read_special(vocab, engine, path, config)
    if kind == "WordPiece":
        _spell_words(vocab, engine.model.continuing_subword_prefix)
        return VocabTokenizer(vocab, encoder)
    first = engine.encode("a", add_special_tokens=False).ids[:1]
    vocab.add_space_prefix = bool(first) and vocab.texts[first[0]][0] in (SPACE, "Ġ")
    return VocabTokenizer(vocab, encoder)


def _vocabulary(engine: tokenizers.Tokenizer, n_min: int) -> Vocabulary:
    ids = engine.get_vocab(with_added_tokens=True)
    size = max(n_min, max(ids.values(), default=-1) + 1)
    texts = [f"[PAD{token}]" for token in range(size)]
    attrs = [UNUSED] * size
    for text, token in ids.items():
        texts[token], attrs[token] = text, NORMAL
    vocab = Vocabulary(texts, attrs)
    if getattr(engine.model, "byte_fallback", False):
        for token in filter(lambda token: token >= 0, map(vocab.byte_token, range(256))):
            attrs[token] = BYTE
    if (unknown := getattr(engine.model, "unk_token", None)) in ids:
        attrs[ids[unknown]] = UNKNOWN
    for token, added in engine.get_added_tokens_decoder().items():
        attrs[token] = CONTROL if added.special else USER_DEFINED
    return vocab


def _spell_words(vocab: Vocabulary, prefix: str) -> None:
    """As in a GGUF file: words begin with a visible space, pieces within them lose their prefix."""
    vocab.clean_spaces = True
    for token, text in enumerate(vocab.texts):
        if vocab.attrs[token] & NORMAL:
            vocab.texts[token] = text.removeprefix(prefix) if text.startswith(prefix) else SPACE + text


def _is_byte_level(engine: tokenizers.Tokenizer) -> bool:
    return any(
        b'"ByteLevel"' in part.__getstate__() for part in (engine.decoder, engine.pre_tokenizer) if part
    )


def _read_special(
    vocab: Vocabulary, engine: tokenizers.Tokenizer, path: Path, config: Mapping[str, Any]
) -> None:
    named = {**_read_json(path / "special_tokens_map.json"), **config}
    ends = [token for token in _eos_ids(path) if 0 <= token < len(vocab)]
    vocab.bos_id = vocab.ids.get(token_text(named.get("bos_token")), -1)
    vocab.eos_id = vocab.ids.get(token_text(named.get("eos_token")), ends[0] if ends else -1)
    vocab.eog_ids |= set(ends)
    _read_classifier_tokens(vocab, engine, named)
    plain = engine.encode("a", add_special_tokens=False).ids
    processed = engine.encode("a", add_special_tokens=True).ids
    vocab.add_bos = bool(config.get("add_bos_token", processed[:1] == [vocab.bos_id] != plain[:1]))
    vocab.add_eos = bool(config.get("add_eos_token", processed[-1:] == [vocab.eos_id] != plain[-1:]))
    detect_special_ids(vocab)


def _read_classifier_tokens(
    vocab: Vocabulary, engine: tokenizers.Tokenizer, named: Mapping[str, Any]
) -> None:
    """BERT calls its BOS CLS, and its EOS SEP; what stands between two texts is told by encoding two."""
    vocab.sep_id = vocab.ids.get(token_text(named.get("sep_token")), -1)
    if vocab.bos_id < 0:
        vocab.bos_id = vocab.ids.get(token_text(named.get("cls_token")), -1)
    if vocab.eos_id < 0:
        vocab.eos_id = vocab.sep_id
    between = engine.encode("a", "a").ids[1:-1]
    plain = engine.encode("a", add_special_tokens=False).ids
    vocab.add_sep = vocab.sep_id >= 0 and between[len(plain) : -len(plain)].count(vocab.sep_id) > 1


def token_text(value: Any) -> str:
    """A token as tokenizer_config.json names it: a string or an object with ``content``."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else ""


def _eos_ids(path: Path) -> list[int]:
    """``eos_token_id`` of generation_config.json and config.json, the former first."""
    values = [
        _read_json(path / name).get("eos_token_id") for name in ("generation_config.json", "config.json")
    ]
    lists = [value if isinstance(value, list) else [value] for value in values]
    return [token for value in lists for token in value if isinstance(token, int)]


def _config_vocab_size(path: Path) -> int:
    config = _read_json(path / "config.json")
    size = config.get("vocab_size", (config.get("text_config") or {}).get("vocab_size"))
    return size if isinstance(size, int) else 0


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: not a JSON object")
    return content
