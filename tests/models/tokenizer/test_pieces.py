from __future__ import annotations

import pytest

from mlxserver.models.tokenizer.pieces import byte_letters, clean_up_spaces, token_piece
from mlxserver.models.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNUSED, USER_DEFINED, Vocabulary


def piece(text: str, attr: int, escape_spaces: bool) -> bytes:
    return token_piece(Vocabulary([text], [attr], escape_spaces=escape_spaces), 0)


def test_byte_letters_are_gpt2s() -> None:
    letters = byte_letters()
    assert len(set(letters)) == 256
    assert (
        letters[ord("a")] == "a" and letters[ord(" ")] == "Ġ" and letters[10] == "Ċ" and letters[0xAD] == "Ń"
    )


def test_byte_level() -> None:
    assert piece("ĠÃ©", NORMAL, False) == " é".encode()
    assert piece("<é>", CONTROL, False) == "<é>".encode()
    assert piece("a哈", NORMAL, False) == b"a[UNK_BYTE_0xe59388a" + "哈]".encode()


def test_sentencepiece() -> None:
    assert piece("▁a▁", NORMAL, True) == b" a "
    assert piece("▁", USER_DEFINED, True) == "▁".encode()
    assert piece("<0xE9>", BYTE, True) == b"\xe9"
    assert piece("x", UNUSED, True) == b""
    assert piece("\udcff▁", NORMAL, True) == b"\xff "


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (b"a . b , c ! d ?", b"a. b, c! d?"),
        (b" . a", b". a"),
        (b"a ' b", b"a'b"),
        (b"it 's I 'm you 're we 've", b"it's I'm you're we've"),
        (b"he 'll don 't I 'd", b"he 'll don 't I 'd"),
    ],
)
def test_clean_up_spaces(text: bytes, cleaned: bytes) -> None:
    assert clean_up_spaces(text) == cleaned
