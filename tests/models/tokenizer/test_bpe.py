from __future__ import annotations

from mlxserver.models.tokenizer import from_gguf
from mlxserver.models.tokenizer.tokenizer import VocabTokenizer
from tests.models.tokenizer.vocabularies import CONTROL, USER_DEFINED, bpe


def texts(tokenizer: VocabTokenizer, text: str, parse_special: bool = True) -> list[str]:
    return [tokenizer.piece(token).decode() for token in tokenizer.encode(text, parse_special=parse_special)]


def test_merges_apply_by_rank() -> None:
    tokenizer = from_gguf(bpe(["b c", "a b", "ab c"]))
    assert texts(tokenizer, "abcab") == ["a", "bc", "ab"]


def test_a_repeated_merge_keeps_its_first_rank() -> None:
    metadata = bpe(["a b", "b c"])
    metadata["tokenizer.ggml.merges"] = ["a b", "b c", "a b"]
    assert texts(from_gguf(metadata), "abc") == ["ab", "c"]


def test_words_are_cut_before_merging() -> None:
    tokenizer = from_gguf(bpe(["a 1", "Ġ a"]))
    assert texts(tokenizer, "a1 a") == ["a", "1", " a"]


def test_a_merge_whose_result_is_no_token_ends_as_its_ascii_letters() -> None:
    metadata = bpe(["a b"])
    metadata["tokenizer.ggml.tokens"].pop()
    metadata["tokenizer.ggml.token_type"].pop()
    assert texts(from_gguf(metadata), "abc") == ["a", "b", "c"]


def test_a_letter_that_is_no_token_is_dropped_and_keeps_its_neighbours_apart() -> None:
    metadata = bpe(["a b"])
    metadata["tokenizer.ggml.tokens"][ord("x")] = "<no x>"
    assert texts(from_gguf(metadata), "axb") == ["a", "b"]


def test_ignore_merges_keeps_a_word_that_is_a_token() -> None:
    merges = ["b c", "a b", "ab c"]
    assert texts(from_gguf(bpe(merges, pre="llama-bpe")), "abc") == ["abc"]
    assert texts(from_gguf(bpe(merges, pre="dbrx")), "abc") == ["a", "bc"]


def test_special_texts() -> None:
    tokenizer = from_gguf(bpe([], special={"<c>": CONTROL, "<u>": USER_DEFINED}))
    assert texts(tokenizer, "x<c><u>") == ["x", "<c>", "<u>"]
    assert texts(tokenizer, "x<c><u>", parse_special=False) == ["x", "<", "c", ">", "<u>"]


def test_raw_utf8_vocabulary() -> None:
    """gemma4: spaces as U+2581, unknown characters as bytes, whole runs of newlines."""
    tokens = ["<0xC3>", "<0xA9>", "▁", "a", "\n", "\n\n\n", "▁a"]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [6, 6, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["▁ a"],
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.add_bos_token": False,
    }
    tokenizer = from_gguf(metadata)
    assert tokenizer.encode("a a\n\n\na\n\n") == [3, 6, 5, 3, 4, 4]
    assert tokenizer.add_bos
    metadata["tokenizer.ggml.tokens"] = [*[f"<0x{byte:02X}>" for byte in range(256)], *tokens[2:]]
    metadata["tokenizer.ggml.token_type"] = [6] * 256 + [1] * 5
    assert from_gguf(metadata).encode("é a") == [0xC3, 0xA9, 260]
