from __future__ import annotations

from mlxserver.models.tokenizer.special_ids import detect_special_ids
from mlxserver.models.tokenizer.vocabulary import CONTROL, NORMAL, USER_DEFINED, Vocabulary


def detect(*texts: str, **ids: int) -> Vocabulary:
    vocab = Vocabulary(list(texts), [NORMAL] * len(texts), **ids)
    detect_special_ids(vocab)
    return vocab


def test_eog_by_text_and_by_id() -> None:
    vocab = detect("a", "<|im_end|>", "<end_of_turn>", "b", "c", eos_id=3, eot_id=4)
    assert vocab.eog_ids == {1, 2, 3, 4}
    assert vocab.attrs == [NORMAL, NORMAL | CONTROL, NORMAL | CONTROL, NORMAL, NORMAL]


def test_no_eog() -> None:
    assert detect("a").eog_ids == set()


def test_fim_by_text() -> None:
    vocab = detect("<PRE>", "<SUF>", "<MID>", "<|fim_pad|>", "<reponame>", "<|file_sep|>")
    assert (vocab.fim_pre, vocab.fim_suf, vocab.fim_mid) == (0, 1, 2)
    assert (vocab.fim_rep, vocab.fim_sep) == (4, 5)
    assert vocab.eog_ids == {3, 4, 5}


def test_ids_of_the_file_go_before_texts() -> None:
    assert detect("<PRE>", "x", fim_pre=1).fim_pre == 1


def test_channel_tokens_are_shown_and_end_ends_only_a_message() -> None:
    vocab = detect("<|end|>", "<|return|>", "<|call|>", "<|channel|>")
    assert vocab.eog_ids == {1, 2}
    assert vocab.attrs[0] == vocab.attrs[3] == USER_DEFINED
    assert detect("<|end|>", "<|return|>").eog_ids == {0, 1}


def test_tool_response_makes_s_a_word() -> None:
    vocab = detect("</s>", "<|tool_response>")
    assert vocab.eog_ids == {1} and vocab.attrs[0] == NORMAL
