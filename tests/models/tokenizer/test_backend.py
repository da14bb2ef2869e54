"""Ids without offsets, made while other threads run."""

from __future__ import annotations

import threading
import time

import tokenizers
from tokenizers import models, pre_tokenizers

from mlxserver.models.tokenizer.backend import token_ids


def engine() -> tokenizers.Tokenizer:
    vocab = {letter: number for number, letter in enumerate("abcdefgh")} | {"ab": 8, "cd": 9}
    made = tokenizers.Tokenizer(models.BPE(vocab, [("a", "b"), ("c", "d")]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def test_the_ids_are_those_of_encode() -> None:
    for text in ("", "a", "abc abcd", "hgfedcba ab"):
        assert token_ids(engine(), text) == engine().encode(text, add_special_tokens=False).ids


def test_other_threads_run_meanwhile() -> None:
    text = "abcdefgh" * 100_000
    thread = threading.Thread(target=token_ids, args=(engine(), text))
    thread.start()
    gaps = []
    while thread.is_alive():
        before = time.perf_counter()
        time.sleep(0.001)
        gaps.append(time.perf_counter() - before)
    thread.join()
    assert len(gaps) > 5, "it must take longer than a few turns, or nothing was tested"
    assert max(gaps) < 0.9 * sum(gaps)
