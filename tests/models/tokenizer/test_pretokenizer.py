"""Cuts that llama.cpp makes, by kind. ``Ġ`` and ``Ċ`` are byte letters for a space and a newline."""

from __future__ import annotations

import pytest

from mlxserver.models.tokenizer.pretokenizer import PRE_TOKENIZERS

CUTS = {
    "gpt-2": "ab|1234567| 99| x|'|S| | y|\n\n|\n|HelloWorld|'s",
    "smollm": "ab|1|2|3|4|5|6|7| |9|9| x|'|S| | y|\n\n|\n|HelloWorld|'s",
    "llama-bpe": "ab|123|456|7| |99| x|'S| | y|\n\n\n|HelloWorld|'s",
    "qwen2": "ab|1|2|3|4|5|6|7| |9|9| x|'S| | y|\n\n\n|HelloWorld|'s",
    "tekken": "ab|1|2|3|4|5|6|7| |9|9| x|'S| | y|\n\n\n|Hello|World|'s",
    "gpt-4o": "ab|123|456|7| |99| x'S| | y|\n\n\n|Hello|World's",
    "deepseek-v3": "ab|123|456|7| |99| x|'S| | y|\n\n\n|HelloWorld|'s",
    "tiny_aya": "ab|1|234|567| |99| x'S| | y|\n\n\n|HelloWorld's",
    "superbpe": "ab|1|234|567| |99| x'S  y\n\n\nHelloWorld's",
    "falcon": "ab|123|456|7| 99| x|'|S| | y|\n\n|\n|HelloWorld|'|s",
    "bloom": "ab1234567| 99| x'S| | y|\n\n\n|HelloWorld's",
    "gemma4": "ab1234567 99 x'S  y|\n\n\n|HelloWorld's",
}


def cut(name: str, text: str) -> str:
    words = [word for word, _ in PRE_TOKENIZERS[name].build().pre_tokenize_str(text)]
    return "|".join(words).replace("Ġ", " ").replace("Ċ", "\n")


@pytest.mark.parametrize("name", CUTS)
def test_kind(name: str) -> None:
    assert cut(name, "ab1234567 99 x'S  y\n\n\nHelloWorld's") == CUTS[name]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_kind_keeps_every_byte(name: str) -> None:
    kind = PRE_TOKENIZERS[name]
    words = [word for word, _ in kind.build().pre_tokenize_str("Ab c1234, 哈é! \t\r\n'll <sentinel:1>")]
    text = "".join(words)
    n_letters = len("Ab c1234, 哈é! \t\r\n'll <sentinel:1>".encode()) if kind.byte_level else 33
    assert len(text) == n_letters


def test_letters_newer_than_unicode_15_are_signs() -> None:
    assert cut("gpt-2", "a\u1c89") == "a|á²ī"
    assert cut("gpt-2", "a\u1c88") == "aá²Ī"
