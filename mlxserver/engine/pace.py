"""How many prompt tokens a step may take beside running streams."""

from __future__ import annotations

PROMPT_SHARE = 3.0
"""A prompt chunk may take this many times as long as the decode step that it delays."""
LONGEST_CHUNK_SECONDS = 0.5
"""With no stream running a step still ends about this soon, for cancellations and new requests."""
SMALLEST_CHUNK = 16
SMOOTHING = 0.4


class Pace:
    """Learns the time of a decode step and of a prompt token from the steps that ran."""

    def __init__(self) -> None:
        self._decode_seconds = 0.0
        self.seconds_per_token = 0.0
        """Of a prompt; 0 before the first one."""

    def ran(self, seconds: float, n_chunk: int, n_decodes: int) -> None:
        """A step with ``n_chunk`` prompt tokens and ``n_decodes`` rows took ``seconds``."""
        if n_chunk == 0 and n_decodes:
            self._decode_seconds = _smooth(self._decode_seconds, seconds)
        elif n_chunk >= SMALLEST_CHUNK:
            own = max(seconds - (self._decode_seconds if n_decodes else 0.0), seconds / 10)
            # tokens cost more the longer their prompt is: follow a rise at once
            cost = own / n_chunk
            self.seconds_per_token = max(cost, _smooth(self.seconds_per_token, cost))

    def budget(self, streams_run: bool, most: int) -> int:
        """Prompt tokens for a step, at most ``most``."""
        if not self.seconds_per_token:
            return min(most, 2 * SMALLEST_CHUNK)
        seconds = PROMPT_SHARE * self._decode_seconds if streams_run else LONGEST_CHUNK_SECONDS
        return min(most, max(SMALLEST_CHUNK, int(seconds / self.seconds_per_token)))


def _smooth(old: float, new: float) -> float:
    return old + SMOOTHING * (new - old) if old else new
