from __future__ import annotations

from mlxserver.models.tokenizer.partition import SpecialTokens
from mlxserver.models.tokenizer.vocabulary import CONTROL, NORMAL, RSTRIP, UNKNOWN, USER_DEFINED, Vocabulary


def special(**attrs: int) -> SpecialTokens:
    return SpecialTokens(Vocabulary(list(attrs), list(attrs.values())))


def test_texts_and_ids_in_order() -> None:
    tokens = SpecialTokens(Vocabulary(["<a>", "<b>", "c"], [CONTROL, CONTROL, NORMAL]))
    assert tokens.split("x<b>c<a><a>y", True) == ["x", 1, "c", 0, 0, "y"]
    assert tokens.split("", True) == []


def test_longer_tokens_go_first_even_where_a_shorter_one_begins_earlier() -> None:
    tokens = special(ab=CONTROL, bcd=CONTROL)
    assert tokens.split("abcd", True) == ["a", 1]


def test_length_counts_bytes() -> None:
    tokens = special(aé=CONTROL, éaa=CONTROL, ébcd=CONTROL)
    assert tokens.split("aébcd", True) == ["a", 2]


def test_without_parse_special_only_user_defined_tokens_count() -> None:
    tokens = special(u=USER_DEFINED, c=CONTROL, k=UNKNOWN, both=USER_DEFINED | CONTROL)
    assert tokens.split("xuckboth", False) == ["x", 0, "ckboth"]


def test_rstrip_drops_spaces_after_the_token() -> None:
    tokens = special(T=CONTROL | RSTRIP)
    assert tokens.split("x T \n y", True) == ["x ", 0, "y"]
    assert tokens.split("T  T", True) == [0, 0]


def test_a_text_that_is_not_utf8_is_never_found() -> None:
    assert special(**{"\udcff": CONTROL, "a": CONTROL}).split("a\ufffd", True) == [1, "\ufffd"]
