from __future__ import annotations

import logging

import numpy as np
import pytest

from mlxserver.models.errors import ModelError
from mlxserver.models.tokenizer import from_gguf
from tests.models.tokenizer.vocabularies import BYTE, CONTROL, bpe, spm


@pytest.mark.parametrize("model", ["rwkv", "plamo2", "none", "new-kind"])
def test_unsupported_models_are_named(model: str) -> None:
    with pytest.raises(ModelError, match=f"'{model}'"):
        from_gguf({**bpe([]), "tokenizer.ggml.model": model})


def test_unknown_pre_tokenizer_is_named() -> None:
    with pytest.raises(ModelError, match="unknown pre-tokenizer type: 'new-kind'"):
        from_gguf(bpe([], pre="new-kind"))


def test_missing_pre_tokenizer_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        from_gguf(bpe([], pre=""))
    assert "using: 'default'" in caplog.text


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_missing_keys_are_named(key: str) -> None:
    metadata = bpe([])
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(ModelError, match=f"tokenizer.ggml.{key}"):
        from_gguf(metadata)


def test_short_columns() -> None:
    with pytest.raises(ModelError, match="'tokenizer.ggml.scores' has 1 entries"):
        from_gguf({**spm(["a"]), "tokenizer.ggml.scores": [0.0]})


def test_damaged_byte_token() -> None:
    with pytest.raises(ModelError, match="'nonsense'"):
        from_gguf(spm(["a"], special={"nonsense": BYTE}))


def test_bytes_arrays_and_empty_tokens() -> None:
    metadata = bpe(["a b"])
    tokens = [token.encode() for token in metadata["tokenizer.ggml.tokens"]] + [b"", b"\xff\xfe"]
    metadata["tokenizer.ggml.tokens"] = tokens
    metadata["tokenizer.ggml.token_type"] = np.array([1] * (len(tokens) - 1) + [CONTROL], np.int32)
    metadata["tokenizer.ggml.merges"] = [b"a b"]
    metadata["tokenizer.ggml.model"] = b"gpt2"
    tokenizer = from_gguf(metadata)
    assert tokenizer.encode("ab") == [256]
    assert tokenizer.piece(257) == b"[EMPTY_257]"
    assert tokenizer.piece(258) == b"\xff\xfe"


def test_default_ids() -> None:
    tokenizer = from_gguf(bpe([]))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (11, 11, False)
    assert from_gguf(bpe([], pre="llama-bpe")).add_bos
    assert from_gguf(bpe([], pre="glm4")).bos_id == -1


def test_an_id_outside_the_vocabulary_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = from_gguf(bpe([], eos_token_id=5000))
    assert tokenizer.eos_id == 11
    assert "'eos_token_id' = 5000" in caplog.text


def test_phi3_drops_spaces_after_special_tokens() -> None:
    metadata = spm(["▁a", "▁", "a"], special={"<|user|>": CONTROL})
    plain, phi3 = from_gguf(metadata), from_gguf({**metadata, "general.name": "Phi-3 Mini"})
    assert plain.decode(plain.encode("<|user|> a")) == b"<|user|>  a"
    assert phi3.decode(phi3.encode("<|user|> a")) == b"<|user|> a"
    assert phi3.decode(phi3.encode("<s> a")) == b"<s>  a"
