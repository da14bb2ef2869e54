"""The text side of a completion, against a naive version that looks at the whole text each time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mlxserver.chat.text_stream import TextRules, TextStream, complete_len
from tests.api.fake_engine import EOS, TAG, ByteTokenizer


class PieceTokenizer(ByteTokenizer):
    """Token ``i`` is the ``i``-th piece."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def piece(self, token: int, special: bool = True) -> bytes:
        return super().piece(token, special) if token >= 256 else self._pieces[token]


def run(pieces: list[bytes], rules: TextRules, end: bool = False) -> tuple[TextStream, list[bytes | None]]:
    stream = TextStream(PieceTokenizer(pieces), rules)
    sent: list[bytes | None] = []
    for token in [*range(len(pieces)), *([EOS] if end else [])]:
        if stream.stop_type == "none":
            sent.append(stream.add(token, 1.0))
    return stream, sent


def joined(sent: list[bytes | None]) -> bytes:
    return b"".join(part or b"" for part in sent)


WORDS = st.lists(st.text(alphabet="ab\n é😀", min_size=1, max_size=4), max_size=3)
PIECES = st.lists(
    st.text(alphabet="ab\n é😀", max_size=3).map(str.encode)
    | st.sampled_from([b"\xf0\x9f", b"\x98\x80", b"\xc3", b"\xa9"]),
    max_size=12,
)


def naive(pieces: list[bytes], stops: list[str]) -> tuple[bytes, str]:
    """The text up to the first stop word, looked for whenever the text ends with a whole character."""
    text = b""
    for piece in pieces:
        text += piece
        if complete_len(text) < len(text):
            continue
        found = [
            (text.find(word.encode()), order) for order, word in enumerate(stops) if word.encode() in text
        ]
        if found:
            at, order = min(found)
            return text[:at], stops[order]
    return text, ""


@given(PIECES, WORDS)
def test_stop_words_as_in_the_whole_text(pieces: list[bytes], stops: list[str]) -> None:
    stream, sent = run(pieces, TextRules(stop=tuple(stops)))
    expected_text, expected_word = naive(pieces, stops)
    # Text once sent is not searched again, so a word that starts in a sent invalid byte cannot differ here:
    # every word is valid UTF-8 and its start is withheld.
    assert (bytes(stream.text), stream.stopping_word) == (expected_text, expected_word)
    assert expected_text.startswith(joined(sent))
    if expected_word:
        assert joined(sent) == expected_text


@given(PIECES, WORDS)
def test_the_end_token_releases_withheld_text(pieces: list[bytes], stops: list[str]) -> None:
    stream, sent = run(pieces, TextRules(stop=tuple(stops)), end=True)
    if not stream.met_stop_word:
        assert stream.stop_type == "eos"
        cut = complete_len(stream.text)
        assert joined(sent) == stream.text if cut == len(stream.text) else True


@given(st.binary(max_size=8))
def test_complete_len(text: bytes) -> None:
    cut = complete_len(text)
    assert len(text) - cut < 4
    assert complete_len(text[:cut] + b"") <= cut


@given(st.text(max_size=6), st.integers(0, 3))
def test_complete_len_of_cut_text(text: str, cut: int) -> None:
    whole = text.encode()
    assert complete_len(whole) == len(whole)
    kept = whole[: len(whole) - cut]
    assert complete_len(kept) == len(kept.decode(errors="ignore").encode())


def test_special_tokens() -> None:
    hidden = TextStream(ByteTokenizer(), TextRules())
    assert hidden.add(TAG, 0) == b""
    shown = TextStream(ByteTokenizer(), TextRules(show_special=True))
    assert shown.add(TAG, 0) == b"<tag>"
    kept = TextStream(ByteTokenizer(), TextRules(preserved_tokens=frozenset({TAG})))
    assert kept.add(TAG, 0) == b"<tag>"


def test_empty_stop_word_matches_at_once() -> None:
    stream, sent = run([b"abc", b"d"], TextRules(stop=("",)))
    assert (bytes(stream.text), stream.stop_type, sent) == (b"", "word", [b""])


def test_earliest_word_wins_then_the_first_listed() -> None:
    stream, _ = run([b"a678"], TextRules(stop=("8", "7", "67")))
    assert (bytes(stream.text), stream.stopping_word) == (b"a", "67")
    stream, _ = run([b"a78"], TextRules(stop=("78", "7")))
    assert stream.stopping_word == "78"


def test_a_word_inside_sent_text_is_not_found() -> None:
    stream, sent = run([b"ab", b"c"], TextRules(stop=("bcd",)))
    assert sent == [b"", b""]
    assert bytes(stream.text) == b"abc"


INDENT = TextRules(n_indent=4)


def test_indent_limit_cuts_the_line() -> None:
    stream, _ = run([b"a", b"\n", b"    b", b"\n", b"  ", b"d"], INDENT)
    assert (bytes(stream.text), stream.stop_type) == (b"a\n    b\n  ", "limit")


def test_tabs_and_blank_lines_count_as_indentation() -> None:
    stream, _ = run([b"a\n", b"\t\t\t\tb\n", b"    ", b"c"], INDENT)
    assert stream.stop_type == "none"


def test_time_limit_waits_for_a_new_line() -> None:
    stream = TextStream(PieceTokenizer([b"a", b"b\n", b"c\n"]), TextRules(t_max_predict_ms=10))
    assert stream.add(0, 50) == b"a" and stream.stop_type == "none"
    assert stream.add(1, 5) == b"b\n" and stream.has_new_line and stream.stop_type == "none"
    assert stream.add(2, 11) == b"c\n" and stream.stop_type == "limit"
    unlimited = TextStream(PieceTokenizer([b"\n"]), replace(INDENT, n_indent=0))
    unlimited.add(0, 1e9)
    assert unlimited.stop_type == "none"
