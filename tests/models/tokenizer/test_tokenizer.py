from __future__ import annotations

import pytest

from mlxserver.models.model import Tokenizer
from mlxserver.models.tokenizer import from_gguf
from tests.models.tokenizer.vocabularies import CONTROL, UNKNOWN, USER_DEFINED, bpe


@pytest.fixture
def tokenizer() -> Tokenizer:
    return from_gguf(bpe([], special={"<c>": CONTROL, "<u>": USER_DEFINED, "<k>": UNKNOWN}))


def test_pieces_of_special_tokens(tokenizer: Tokenizer) -> None:
    assert [tokenizer.piece(token) for token in (256, 257, 258)] == [b"<c>", b"<u>", b"<k>"]
    assert [tokenizer.piece(token, special=False) for token in (256, 257, 258)] == [b"", b"<u>", b""]
    assert [tokenizer.is_special(token) for token in (256, 257, 258)] == [True, False, True]


def test_decode(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("é<c> .")) == "é<c>.".encode()
    assert tokenizer.decode(tokenizer.encode("é<c> ."), special=False) == "é.".encode()
    assert tokenizer.decode([]) == b""


@pytest.mark.parametrize(("token", "unsigned"), [(259, 259), (-1, 18446744073709551615)])
def test_tokens_outside_the_vocabulary(tokenizer: Tokenizer, token: int, unsigned: int) -> None:
    with pytest.raises(IndexError) as error:
        tokenizer.piece(token)
    assert (
        str(error.value)
        == f"vector::_M_range_check: __n (which is {unsigned}) >= this->size() (which is 259)"
    )


def test_lone_surrogates_are_replaced(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb".encode()
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00")) == "😀".encode()


def test_bos_and_eos() -> None:
    tokenizer = from_gguf(bpe([], bos_token_id=1, eos_token_id=2, add_bos_token=True, add_eos_token=True))
    assert tokenizer.encode("a", add_special=True) == [1, ord("a"), 2]
    assert tokenizer.encode("", add_special=True) == [1, 2]
    assert tokenizer.encode("a") == [ord("a")]
