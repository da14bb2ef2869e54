from __future__ import annotations

import random

import pytest

from mlxserver.models.tokenizer import from_gguf
from mlxserver.models.tokenizer.tokenizer import VocabTokenizer
from tests.models.tokenizer.vocabularies import CONTROL, USER_DEFINED, spm


def texts(tokenizer: VocabTokenizer, text: str, parse_special: bool = True) -> list[str]:
    return [tokenizer.piece(token).decode() for token in tokenizer.encode(text, parse_special=parse_special)]


def by_definition(words: list[str], text: str) -> list[str]:
    """The best-scored pair of neighbours that is a token is joined, the leftmost of equals, until none is."""
    rank = {word: i for i, word in enumerate(words)}
    symbols = list(text)
    while True:
        pairs = [
            (rank[a + b], i)
            for i, (a, b) in enumerate(zip(symbols, symbols[1:], strict=False))
            if a + b in rank
        ]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


def overlaps_itself(word: str) -> bool:
    return any(word[:n] == word[-n:] for n in range(1, len(word)))


@pytest.mark.parametrize("seed", range(40))
def test_random_vocabularies(seed: int) -> None:
    rng = random.Random(seed)
    made = {"".join(rng.choices("abcd", k=rng.randint(2, 5))) for _ in range(60)}
    words = sorted(word for word in made if not overlaps_itself(word))
    rng.shuffle(words)
    tokenizer = from_gguf(spm([*words, *"abcd"], add_space_prefix=False))
    for _ in range(20):
        text = "".join(rng.choices("abcd", k=rng.randint(1, 40)))
        assert texts(tokenizer, text) == by_definition([*words, *"abcd"], text)


def test_space_prefix_at_the_start_and_after_special_tokens() -> None:
    tokenizer = from_gguf(spm(["▁a", "▁", "a"], special={"<c>": CONTROL}))
    assert texts(tokenizer, "a") == [" a"]
    assert texts(tokenizer, "a<c>a") == [" a", "<c>", " a"]
    assert texts(tokenizer, "") == []
    assert texts(from_gguf(spm(["▁a", "a"], add_space_prefix=False)), "a") == ["a"]


def test_unknown_characters_are_bytes() -> None:
    tokenizer = from_gguf(spm(["a"], add_space_prefix=False))
    assert tokenizer.encode("aé") == [259, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode(tokenizer.encode("aé\n")) == "aé\n".encode()


def test_a_character_that_is_only_part_of_tokens_merges_or_is_bytes() -> None:
    tokenizer = from_gguf(spm(["xé", "x"], add_space_prefix=False))
    assert tokenizer.encode("xéé") == [259, 3 + 0xC3, 3 + 0xA9]


def test_control_texts_can_come_out_of_merges_where_they_are_not_parsed() -> None:
    tokenizer = from_gguf(spm(["<c", "<", "c", ">"], special={"<c>": CONTROL}, add_space_prefix=False))
    assert len(tokenizer.encode("<c>", parse_special=False)) == 1


def test_user_defined_tokens_are_always_parsed() -> None:
    tokenizer = from_gguf(spm(["▁", "a"], special={"  ": USER_DEFINED}, add_space_prefix=False))
    assert texts(tokenizer, "a   a", parse_special=False) == ["a", "  ", " ", "a"]


def test_bos_is_added_by_default() -> None:
    tokenizer = from_gguf(spm(["▁a"]))
    assert tokenizer.encode("a", add_special=True) == [1, 259]
    assert from_gguf(spm(["▁a"], add_bos_token=False, add_eos_token=True)).encode("a", True) == [259, 2]


def test_detokenize_drops_the_prefix_space() -> None:
    tokenizer = from_gguf(spm(["▁a", "▁", "a"]))
    assert tokenizer.decode(tokenizer.encode("a a")) == b"a a"
    assert tokenizer.piece(259) == b" a"
