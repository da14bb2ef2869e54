"""Answers cut in every way: whatever the pieces, the deltas joined are the plain answer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

from mlxserver.chat.answer_deltas import Answer, AnswerDelta, joined
from mlxserver.chat.answer_parser import AnswerParser, AnswerRules


def parse(rules: AnswerRules, pieces: Iterable[str], is_complete: bool = True) -> list[AnswerDelta]:
    ids = (f"id{number}" for number in itertools.count())
    parser = AnswerParser(rules, lambda: next(ids))
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    return deltas + parser.finish(is_complete)


def answer_of(rules: AnswerRules, text: str, is_complete: bool = True) -> Answer:
    return joined(parse(rules, [text], is_complete))


def cuttings(text: str, seed: int = 0, num_random: int = 30) -> Iterable[list[str]]:
    """Every single cut, one character a piece, and random cuts."""
    for at in range(len(text) + 1):
        yield [text[:at], text[at:]]
    yield list(text)
    draw = random.Random(seed)
    for _ in range(num_random):
        cuts = sorted(draw.choices(range(len(text) + 1), k=draw.randint(1, 12)))
        yield [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]


def check_cuttings(rules: AnswerRules, text: str) -> None:
    """For the whole text and for every beginning of it, as a limit would leave it."""
    whole = answer_of(rules, text)
    for pieces in cuttings(text):
        assert joined(parse(rules, pieces)) == whole, pieces
    for size in range(len(text)):
        cut = answer_of(rules, text[:size], is_complete=False)
        assert joined(parse(rules, text[:size], is_complete=False)) == cut, text[:size]
