from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from mlxserver.models.errors import ModelError
from mlxserver.models.tokenizer import from_folder
from mlxserver.models.tokenizer.pieces import byte_letters


def write(path: Path, engine: tokenizers.Tokenizer, **configs: dict[str, Any]) -> Path:
    engine.save(str(path / "tokenizer.json"))
    for name, config in configs.items():
        (path / f"{name}.json").write_text(json.dumps(config))
    return path


def byte_level() -> tokenizers.Tokenizer:
    vocab = {letter: token for token, letter in enumerate([*byte_letters(), "ab"])}
    engine = tokenizers.Tokenizer(models.BPE(vocab, [("a", "b")]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(["<bos>", "<|im_end|>"])
    engine.add_tokens(["<tool>"])
    return engine


def spm_like() -> tokenizers.Tokenizer:
    tokens = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "a", "▁a"]
    vocab = {text: token for token, text in enumerate(tokens)}
    engine = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    engine.add_special_tokens(["<s>", "</s>"])
    engine.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 260)])
    return engine


def test_byte_level(tmp_path: Path) -> None:
    tokenizer = from_folder(write(tmp_path, byte_level(), tokenizer_config={"eos_token": "<|im_end|>"}))
    assert tokenizer.encode("ab<bos><tool>é") == [256, 257, 259, 0xC3, 0xA9]
    assert tokenizer.encode("<bos><tool>", parse_special=False) == [*b"<bos>", 259]
    assert tokenizer.decode([256, 257, 259, 0xC3, 0xA9]) == "ab<bos><tool>é".encode()
    assert tokenizer.decode([257, 259], special=False) == b"<tool>"
    assert (tokenizer.eos_id, tokenizer.eog_ids, tokenizer.add_bos) == (258, {258}, False)


def test_special_tokens_of_the_configs(tmp_path: Path) -> None:
    write(
        tmp_path,
        byte_level(),
        tokenizer_config={"add_bos_token": True},
        special_tokens_map={"bos_token": {"content": "<bos>"}},
        generation_config={"eos_token_id": [7, 8]},
        config={"eos_token_id": 9, "text_config": {"vocab_size": 300}},
    )
    tokenizer = from_folder(tmp_path)
    assert tokenizer.encode("ab", add_special=True) == [257, 256]
    assert (tokenizer.eos_id, tokenizer.eog_ids) == (7, {7, 8, 9, 258})
    assert tokenizer.n_vocab == 300 and tokenizer.piece(299) == b""


def test_sentencepiece_like(tmp_path: Path) -> None:
    tokenizer = from_folder(
        write(tmp_path, spm_like(), tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"})
    )
    assert tokenizer.encode("a aé", add_special=True) == [260, 259, 259, 1 + 0xC3, 1 + 0xA9]
    assert tokenizer.decode([259, 259, 1 + 0xC3, 1 + 0xA9]) == "a aé".encode()
    assert tokenizer.eog_ids == {261} and tokenizer.is_special(0)


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    write(tmp_path, tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")))
    with pytest.raises(ModelError, match="'WordLevel' is not supported"):
        from_folder(tmp_path)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    write(tmp_path, byte_level())
    (tmp_path / name).write_text("{")
    with pytest.raises(ModelError, match=name):
        from_folder(tmp_path)
