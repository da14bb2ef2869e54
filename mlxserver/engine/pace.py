"""How many prompt tokens a step may take beside running streams."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlxserver.engine.pass_shape import KEYS_WORTH, PassShape
from mlxserver.engine.trend import Trend, smoothed

PROMPT_SHARE = 1.25
"""What is read of a prompt in the streams' own pass may take this many times as long as the decode step.

A simulated arrival of 4,000 tokens, each step off by 10 %: the largest gap is 2.9 median ones. With a share
of 3 it is 5.1, and the prompt is done in seven tenths of the time.
"""
OWN_PASS_SHARE = 1.75
"""As that, where a prompt has a pass of its own: most of the time is that of the weights."""
MOST_SHARES = 4
"""Of several prompts each has that share, but no more than so many together."""
LONGEST_CHUNK_SECONDS = 0.6
"""With no stream running a step still ends about this soon, for cancellations and new requests.

A server's first chunks took up to half as long again.
"""
UNKNOWN_CHUNK_SECONDS = 0.25
"""Beside streams of which no step was timed yet."""
FIRST_CHUNK = 64
"""Tokens that are believed to take ``LONGEST_CHUNK_SECONDS`` before any prompt was timed."""
LEAST_WORK = 1.25
"""A pass may take this many times what it costs by itself whatever the share is: one that reads all weights
for a few tokens delays the streams and brings nothing."""


class Pace:
    """Learns the time of a decode step as it grows with the rows, and that of a prompt token as it grows with
    the token's position.

    ``pass_tokens``: what a pass of prompts costs by itself, since it reads all weights, in tokens at the
    beginning of a prompt. It is measured beforehand: told apart from the tokens' cost while prompts run, an
    error in one is made up for by the other, and chunks shrink to a token.
    """

    def __init__(self, pass_tokens: float = 0.0) -> None:
        self.pass_tokens = pass_tokens
        self._decode = Trend(memory=0.98, spread=1.0, wary=False)
        self._token = Trend(memory=0.98, spread=64.0, wary=True)
        self.seconds_per_token = 0.0
        """Of a prompt, lately; 0 before the first one."""

    @property
    def pass_seconds(self) -> float:
        """What a pass costs whatever its tokens."""
        return self.pass_tokens * self._token_at(0)

    def ran(self, seconds: float, passes: Sequence[PassShape], n_decodes: int) -> None:
        """A step evaluated these passes of prompts, and ``n_decodes`` rows."""
        is_joint = not any(shape.is_own for shape in passes)
        if not passes:
            if n_decodes:
                self._decode.learn(n_decodes, seconds)
        elif n_decodes == 0:
            self._learn(seconds, passes)
        elif not self._decode.is_known or (is_joint and not self._token.is_known):
            self._learn(seconds, passes, n_decodes + self.pass_tokens)
        elif is_joint:
            # of a few tokens beside rows the difference is mostly noise: they are taken all together
            self._learn(seconds, passes, self._decode.at(n_decodes) / self._token_at(0))
        else:
            self._learn(max(seconds - self._decode.at(n_decodes), seconds / 10), passes)

    def _learn(self, seconds: float, passes: Sequence[PassShape], n_others: float = 0.0) -> None:
        """``n_others``: tokens' worth of other work that these seconds were for."""
        n = sum(shape.n_tokens for shape in passes)
        # a pass is tokens at position 0: where its own columns are read does not matter
        n_worth = n + sum(shape.is_own for shape in passes) * self.pass_tokens + n_others
        self._token.learn(sum(shape.n_columns for shape in passes) / n_worth, seconds / n_worth)
        self.seconds_per_token = smoothed(self.seconds_per_token, sum(map(self.cost, passes)) / n)

    def seconds(self, n_streams: int, n_waiting: int = 1, is_own: bool = True) -> float:
        """What ``n_waiting`` prompts may take beside so many streams, in passes of their own or not."""
        if n_streams == 0:
            return LONGEST_CHUNK_SECONDS
        if not self._decode.is_known:
            return UNKNOWN_CHUNK_SECONDS
        alone = (OWN_PASS_SHARE if is_own else PROMPT_SHARE) * self._decode.at(n_streams)
        if is_own and self._token.is_known:
            alone = max(alone, LEAST_WORK * self.pass_seconds)
        return max(alone, min(LONGEST_CHUNK_SECONDS, alone * min(n_waiting, MOST_SHARES)))

    def cost(self, shape: PassShape) -> float:
        """Seconds that a pass will take."""
        n_worth = shape.n_tokens + self.pass_tokens * shape.is_own
        return n_worth * self._token_at(shape.n_columns / n_worth)

    def budget(self, seconds: float, start: int = 0, is_own: bool = True) -> int:
        """Tokens of a prompt, from ``start`` on, done in ``seconds`` in a pass of their own or not."""
        reading = self._token.slope * KEYS_WORTH * start
        seconds = max(0.0, seconds - self.pass_seconds * is_own - reading)
        first, half = self._token_at(start), self._token.slope / 2
        # n tokens take n * first + n * n * half
        return int(2 * seconds / (first + math.sqrt(first * first + 4 * half * seconds)))

    def _token_at(self, position: float) -> float:
        return self._token.at(position) or LONGEST_CHUNK_SECONDS / (FIRST_CHUNK + self.pass_tokens)
