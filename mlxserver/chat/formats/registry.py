"""Every known family, in the order in which templates are tried."""

from __future__ import annotations

import re
from itertools import chain

from mlxserver.chat.formats import (
    command_r,
    deepseek,
    functionary,
    gemma,
    glm,
    gpt_oss,
    hermes,
    kimi,
    lfm2,
    llama3,
    minicpm,
    minimax,
    mistral,
    others,
    qwen3_coder,
    solar,
)
from mlxserver.chat.formats.bare_calls import BareCalls
from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.json_calls import ARGUMENT_KEYS, NAME_KEYS, JsonCalls

_MODULES = (
    mistral,
    gpt_oss,
    kimi,
    command_r,
    lfm2,
    deepseek,
    gemma,
    minicpm,
    qwen3_coder,
    glm,
    minimax,
    functionary,
    solar,
    others,
    hermes,
    llama3,
)
FAMILIES: tuple[Family, ...] = tuple(chain.from_iterable(module.FAMILIES for module in _MODULES))

GENERIC = Family("generic", (), BareCalls())
"""For templates that have no form of their own: a JSON object alone."""

SAMPLE_NAME = "probed_function"
"""The function that ``find_family``'s sample calls."""


def find_family(source: str, sample: str) -> Family | None:
    """The family of a template; ``sample`` is what it makes of an answer that is one call."""
    shown = f"{source}\n{sample}"
    known = next((family for family in FAMILIES if family.knows(shown)), None)
    return known or _derived(sample)


def _derived(sample: str) -> Family | None:
    """A JSON call that a template shows between marks of its own, or bare."""
    name_keys, argument_keys = "|".join(NAME_KEYS), "|".join(ARGUMENT_KEYS)
    found = re.search(
        rf'(\[?\s*)\{{\s*"(?P<name>{name_keys})"\s*:\s*"{SAMPLE_NAME}"\s*,\s*"(?P<args>{argument_keys})"\s*:',
        sample,
    )
    if found is None:
        return None
    name_key, arguments_key = found["name"], found["args"]
    start = re.search(r"(<[^<>]+>|\[[A-Z_]+\])\s*$", sample[: found.start()])
    if start is None:
        return Family("bare", (), BareCalls(name_key, arguments_key))
    end = re.search(r"[}\]]\s*(</[^<>]+>)", sample[found.end() :])
    calls = JsonCalls(start[1], end[1] if end else "", name_key, arguments_key, found[1].startswith("["))
    return Family("derived", (), calls)
