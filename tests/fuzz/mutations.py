"""Changes of valid things into nearly valid ones, by a seeded generator."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

NUMBERS: Sequence[Any] = (
    *(0, 1, -1, 2, 5, 255, 256, 299, 300, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63, -(2**63), 2**64),
    *(0.0, -0.0, 0.5, 1.5, 1e-45, 1e38, 3.5e38, -1e308, 1e308),
)
TEXTS = (
    *(
        "",
        "a",
        "\0",
        "\n",
        "\r\n",
        "\x1b[31m",
        "é",
        "\U0001f600",
        "\ud800",
        "<|im_end|>",
        "<|end|>",
        "{{ x }}",
    ),
    *(
        "../../etc/passwd",
        "a" * 5000,
        '"',
        "\\",
        "%s",
        "auto",
        "none",
        "required",
        "user",
        "tool",
        "function",
    ),
    *("text", "image_url", "json_object", "json_schema", "root ::= [a-z]*", 'root ::= "a" root |', "^a+$"),
)
KEYS = ("type", "id", "name", "content", "role", "value", "text", "__class__", "", "a")


def value(rng: random.Random, depth: int = 2) -> Any:
    kind = rng.randrange(7 if depth else 5)
    match kind:
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2:
            return rng.choice(NUMBERS)
        case 3 | 4:
            return rng.choice(TEXTS)
        case 5:
            return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): value(rng, depth - 1) for _ in range(rng.randrange(4))}


def mutated(document: Any, rng: random.Random, names: Sequence[str] = KEYS, fields: Any = None) -> Any:
    """``document`` with one to four changes. ``fields``: further keys and good values of a request."""
    changed = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 4))):
        changed = _changed(changed, rng, names, fields or {})
    return changed


def _changed(document: Any, rng: random.Random, names: Sequence[str], fields: dict[str, Any]) -> Any:
    place = _any_place(document, rng)
    if place is None or rng.random() < 0.02:
        return value(rng)
    holder, key = place
    action = rng.randrange(6)
    if isinstance(document, dict) and action in (0, 1):
        name = rng.choice(names)
        good = fields.get(name)
        document[name] = copy.deepcopy(good) if good is not None and action else value(rng)
    elif action == 2:
        del holder[key]
    elif action == 3 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif action == 4 and isinstance(holder[key], str) and holder[key]:
        text = holder[key]
        at = rng.randrange(len(text))
        holder[key] = text[:at] + rng.choice((*TEXTS, *text)) + text[at + rng.randrange(2) :]
    else:
        holder[key] = value(rng)
    return document


def _keys(holder: Any) -> list[Any]:
    if isinstance(holder, dict):
        return list(holder)
    return list(range(len(holder))) if isinstance(holder, list) else []


def _any_place(document: Any, rng: random.Random) -> tuple[Any, Any] | None:
    """A container in ``document`` and a key or index of it."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        holder = waiting.pop()
        for key in _keys(holder):
            found.append((holder, key))
            waiting.append(holder[key])
    return rng.choice(found) if found else None


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flipped, removed, doubled and inserted bytes; sizes and counts that are far off."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + rng.randrange(1, 16)]
            case 2:
                changed[at:at] = changed[at : at + rng.randrange(1, 32)]
            case 3:
                changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
            case 4:
                size = rng.choice((4, 8))
                number = rng.choice(
                    (0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(content))
                )
                changed[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
            case 5:
                del changed[at:]
    return bytes(changed)


def mutated_text(text: str, rng: random.Random, pieces: Sequence[str]) -> str:
    for _ in range(rng.choice((1, 2, 4, 8))):
        at, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        match rng.randrange(4):
            case 0:
                text = text[:at] + rng.choice(pieces) + text[at:]
            case 1:
                text = text[:at] + text[min(end, at + 8) :]
            case 2:
                text = text[:at] + text[at:end][:64] + text[at:]
            case 3:
                text = text[:at] + chr(rng.randrange(rng.choice((128, 0xD800)))) + text[at + 1 :]
    return text
