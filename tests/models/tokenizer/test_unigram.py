from __future__ import annotations

from typing import Any

import pytest

from mlxserver.models.errors import ModelError
from mlxserver.models.tokenizer import from_gguf
from mlxserver.models.tokenizer.vocabulary import SPACE

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
PIECES = {
    SPACE: -3.0,
    "h": -5.0,
    "e": -5.0,
    "l": -5.0,
    "o": -5.0,
    "hell": -4.0,
    f"{SPACE}hello": -6.0,
    f"{SPACE}he": -2.0,
    "llo": -2.5,
    f"{SPACE}o": -4.0,
}
TEXTS = [*SPECIAL, *PIECES]


def metadata(**keys: Any) -> dict[str, Any]:
    """As llama.cpp's converter writes the vocabulary of an XLM-RoBERTa."""
    values = {
        "model": "t5",
        "tokens": TEXTS,
        "scores": [0.0] * len(SPECIAL) + list(PIECES.values()),
        "token_type": [3, 3, 3, 2] + [1] * len(PIECES),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "seperator_token_id": 2,
        "add_bos_token": True,
        "add_sep_token": True,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        **keys,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def texts_of(text: str, add_special: bool = False, **keys: Any) -> list[str]:
    return [TEXTS[token] for token in from_gguf(metadata(**keys)).encode(text, add_special)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("hello", [f"{SPACE}he", "llo"]),
        ("  o   o ", [f"{SPACE}o", f"{SPACE}o"]),
        ("lo", [SPACE, "l", "o"]),
        ("hexyz", [f"{SPACE}he", "<unk>"]),
        ("o</s>hello", [f"{SPACE}o", "</s>", f"{SPACE}he", "llo"]),
        ("", []),
    ],
)
def test_the_best_sum_of_scores_wins(text: str, wanted: list[str]) -> None:
    assert texts_of(text) == wanted


def test_special_tokens_around_a_text() -> None:
    assert texts_of("o", add_special=True) == ["<s>", f"{SPACE}o", "</s>"]
    tokenizer = from_gguf(metadata())
    assert (tokenizer.add_sep, tokenizer.sep_id, tokenizer.eos_id) == (True, 2, 2)
    assert b"".join(map(tokenizer.piece, tokenizer.encode("hello o"))) == b" hello o"


def test_spaces_are_kept_where_the_vocabulary_does_not_merge_them() -> None:
    assert texts_of(" o", remove_extra_whitespaces=False) == [SPACE, f"{SPACE}o"]
    assert texts_of("l", remove_extra_whitespaces=False, add_space_prefix=False) == ["l"]


def test_a_damaged_vocabulary() -> None:
    for damage in ({"unknown_token_id": 99}, {"precompiled_charsmap": [1, 2]}):
        with pytest.raises(ModelError, match="the vocabulary cannot be used"):
            from_gguf(metadata(**damage))
