from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import sentencepiece

from mlxserver.models.errors import ModelError
from mlxserver.models.tokenizer import from_folder
from tests.models.tokenizer import corpus


def train(path: Path, kind: str) -> sentencepiece.SentencePieceProcessor:
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(
            text for text in corpus.lines(1, 400) if text.isascii() and "\x00" not in text
        ),
        model_writer=content,
        model_type=kind,
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    (path / "tokenizer.model").write_bytes(content.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())


def test_ids_equal_sentencepieces_own(tmp_path: Path) -> None:
    model = train(tmp_path, "bpe")
    tokenizer = from_folder(tmp_path)
    for text in corpus.lines(2, 300):
        if "\x00" not in text and "▁" not in text:
            assert tokenizer.encode(text, parse_special=False) == model.Encode(text), text
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, True)


def test_added_tokens(tmp_path: Path) -> None:
    train(tmp_path, "bpe")
    added = {"700": {"content": "<end>", "special": True}, "702": {"content": "▁▁x", "special": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [700, 2]}))
    tokenizer = from_folder(tmp_path)
    assert tokenizer.encode("<end>  x") == [700, 702]
    assert tokenizer.n_vocab == 703 and tokenizer.piece(701) == b""
    assert tokenizer.eos_id == 700 and tokenizer.eog_ids == {2, 700}


def test_unigram_is_refused(tmp_path: Path) -> None:
    train(tmp_path, "unigram")
    with pytest.raises(ModelError, match="unigram"):
        from_folder(tmp_path)


def test_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\xff")
    with pytest.raises(ModelError, match=r"tokenizer\.model"):
        from_folder(tmp_path)
