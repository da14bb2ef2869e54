"""Token ids equal those that llama-server gave (record_tokenizer.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxserver.models.gguf.reader import read_part
from mlxserver.models.tokenizer import from_gguf
from mlxserver.models.tokenizer.tokenizer import VocabTokenizer
from tests.models.tokenizer import recording

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2: Path) -> VocabTokenizer:
    return from_gguf(read_part(smollm2).metadata)


@pytest.fixture(scope="module")
def gemma3_tokenizer(gemma3: Path) -> VocabTokenizer:
    return from_gguf(read_part(gemma3).metadata)


def check(tokenizer: VocabTokenizer, name: str) -> None:
    lines = recording.read(name)
    assert len(lines) > 3000
    for line in lines:
        assert tokenizer.encode(line.text) == line.tokens, line.text
        assert tokenizer.encode(line.text, parse_special=False) == line.tokens_plain, line.text
        assert b"".join(map(tokenizer.piece, line.tokens)).decode() == line.pieces


def test_smollm2(smollm2_tokenizer: VocabTokenizer) -> None:
    check(smollm2_tokenizer, "smollm2")


def test_gemma3(gemma3_tokenizer: VocabTokenizer) -> None:
    check(gemma3_tokenizer, "gemma3")


def test_smollm2_ids(smollm2_tokenizer: VocabTokenizer) -> None:
    tokenizer = smollm2_tokenizer
    assert (tokenizer.n_vocab, tokenizer.bos_id, tokenizer.eos_id) == (49152, 1, 2)
    assert not tokenizer.add_bos and not tokenizer.add_eos
    assert tokenizer.eog_ids == {0, 2, 4}
    assert tokenizer.encode("x", add_special=True) == tokenizer.encode("x")


def test_gemma3_ids(gemma3_tokenizer: VocabTokenizer) -> None:
    tokenizer = gemma3_tokenizer
    assert (tokenizer.n_vocab, tokenizer.bos_id, tokenizer.eos_id) == (262144, 2, 1)
    assert tokenizer.encode("", add_special=True) == [2]
    assert tokenizer.eog_ids == {1, 106, 212}
