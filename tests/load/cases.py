"""What the soak's clients ask: greedy requests whose answers do not depend on who asks beside them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

WORDS = (
    "the keeper of a lighthouse wrote down weather every morning before breakfast and nobody in our harbour "
    "knew why since ships came seldom now bread salt honey river stone clock winter letter seven green under"
).split()
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bo"]}, "n": {"type": "integer"}, "b": {"type": "boolean"}},
    "required": ["name", "n", "b"],
}
GRAMMARS = ('root ::= ("yes" | "no") [a-z ]{3,40} "."', 'root ::= [a-f0-9]+ "-" [^x]* "end"')
SETS: Mapping[str, tuple[tuple[int, float], ...]] = {
    "base": (),
    "a": ((0, 1.0),),
    "half a": ((0, 0.5),),
    "b": ((1, 1.0),),
    "a, b": ((0, 1.0), (1, 0.5)),
    "late": ((2, 1.0),),
}
"""Ids and scales. The adapter of ``late`` is loaded and unloaded while the others are at work."""
WEIGHTS = (10, 3, 2, 3, 2, 1)
N_PREFIXES = 6


@dataclass(frozen=True)
class Case:
    """``body``: a request of ``/completion``, or with ``is_chat`` of ``/v1/chat/completions``, without the
    adapters of ``adapters``, a key of ``SETS``."""

    body: Mapping[str, Any]
    is_chat: bool
    adapters: str

    @property
    def extra(self) -> set[str]:
        return set(self.body) - {"prompt", "messages", "n_predict", "max_tokens", "temperature"}


def pool(rng: random.Random, n_cases: int, longest: int) -> list[Case]:
    """``longest``: of a prompt, in letters. Many share one of a few beginnings of all lengths."""
    prefixes = [words(rng, longest * (i + 1) // (N_PREFIXES + 2)) for i in range(N_PREFIXES)]
    made = [_case(rng, prefixes, longest) for _ in range(n_cases)]
    return [replace(made[0], adapters="late"), *made[1:]]


def words(rng: random.Random, n_letters: int) -> str:
    text = ""
    while len(text) < n_letters:
        text += rng.choice(WORDS) + " "
    return text


def _case(rng: random.Random, prefixes: list[str], longest: int) -> Case:
    prompt = rng.choice(prefixes) if rng.random() < 0.6 else ""
    room = longest - len(prompt)
    prompt += words(rng, rng.choice((1, 20, 60, room // 4, room // 2) if prompt else (1, 5, 40, room // 2)))
    n = rng.choice((1, 2, 8, 16, 24))
    adapters = rng.choices([*SETS], WEIGHTS)[0]
    if rng.random() < 0.45:
        extra = _chat_extra(rng)
        if "response_format" in extra:  # an answer cut within "```json" is shown whole, but not streamed
            n = max(n, 16)
        body = {"messages": _conversation(rng, prompt), "max_tokens": n, "temperature": 0}
        return Case(body | extra, True, adapters)
    body = {"prompt": prompt.rstrip(), "n_predict": n, "temperature": 0}
    return Case(body | _extra(rng), False, adapters)


def _conversation(rng: random.Random, prompt: str) -> list[dict[str, str]]:
    turns = [{"role": "system", "content": prompt}] if rng.random() < 0.6 else []
    for _ in range(rng.choice((0, 0, 1, 2))):
        turns.append({"role": "user", "content": words(rng, 20)})
        turns.append({"role": "assistant", "content": words(rng, 20)})
    return [*turns, {"role": "user", "content": words(rng, 15) if turns else prompt}]


def _extra(rng: random.Random) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {"grammar": rng.choice(GRAMMARS)},
        {"json_schema": SCHEMA},
        {"repeat_penalty": 1.3, "repeat_last_n": 32},
        {"presence_penalty": 0.6, "frequency_penalty": 0.3},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1},
        {"stop": [" the", "ee", "\n"]},
        {"logit_bias": [[rng.randrange(90), 4.0], [rng.randrange(90), False]]},
        {"ignore_eos": True},
    ]
    return rng.choice(kinds) if rng.random() < 0.45 else {}


def _chat_extra(rng: random.Random) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"grammar": rng.choice(GRAMMARS)},
        {"stop": [" the", "ee"]},
    ]
    return rng.choice(kinds) if rng.random() < 0.35 else {}
