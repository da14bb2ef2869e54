"""Where in a prompt the state of layers that cannot be cut is stored.

Later prompts part from this one at its end (another answer is asked for, the next turn follows) or
somewhere inside; so the last tokens, one batch before them, and every so many tokens on the way.
"""

from __future__ import annotations

LAST_TOKENS = 4
"""A template's opening of the answer may differ in about this many tokens."""


def next_checkpoint(done: int, n_prompt: int, n_ubatch: int, min_step: int) -> int:
    """The first position after ``done`` tokens at which to store; the prompt's last token is decoded."""
    end = n_prompt - 1
    marks = [end - LAST_TOKENS - n_ubatch, end - LAST_TOKENS, end]
    if min_step > 0:
        marks.append((done // min_step + 1) * min_step)
    return min(mark for mark in marks if mark > done)


def is_checkpoint(done: int, n_prompt: int, n_ubatch: int, min_step: int) -> bool:
    return 0 < done < n_prompt and next_checkpoint(done - 1, n_prompt, n_ubatch, min_step) == done
