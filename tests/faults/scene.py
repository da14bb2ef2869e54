"""Requests of every kind, which run at the same time, and what each of them gives cold."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rig import Ask, Outcome, Rig, running

PLAIN = "llama"
N_CTX_SLOT = 256

_cold: dict[tuple[str, ...], tuple[dict[str, Outcome], Path]] = {}


def prompt(seed: int, n: int) -> list[int]:
    return [(31 * seed + 11 * i + 7 * (i // 5)) % 249 + 1 for i in range(n)]


TAKEN, CUT, ON_DISK, SAVED = prompt(1, 60), prompt(2, 120), prompt(3, 100), prompt(4, 40)
STOP = {"llama": ["a"], "gemma3": ["^"], "falcon_h1": ["B"]}
DIGITS = 'root ::= "<" [0-9]{3,40} ">"'


def completion(name: str, tokens: list[int], n: int, **fields: Any) -> Ask:
    body = {"prompt": tokens, "n_predict": n, "temperature": 0, "return_tokens": True, **fields}
    return Ask(name, "/completion", body)


def chat(name: str, text: str, n: int, **fields: Any) -> Ask:
    messages = [{"role": "user", "content": text}]
    return Ask(
        name, "/v1/chat/completions", {"messages": messages, "max_tokens": n, "temperature": 0, **fields}
    )


def generations(kind: str) -> list[Ask]:
    """More than there are slots; some share their beginnings with others or with what was warmed up."""
    asks = [
        completion("stream", prompt(10, 40), 40, stream=True),
        completion("plain", prompt(11, 7), 30),
        completion("disk", [*ON_DISK, 9, 8], 12),
        completion("taken", [*TAKEN, 5, 6, 7], 20, stream=True),
        completion("copied", [*prompt(10, 40), 3, 4, 5], 15),
        completion("grammar", prompt(12, 9), 30, grammar=DIGITS),
        completion("seeded", prompt(13, 12), 25, temperature=1.0, seed=7),
        completion("penalised", prompt(14, 12), 25, repeat_penalty=1.4, stream=True),
        completion("long", prompt(15, 150), 5),
        completion("stopped", prompt(19, 10), 60, stop=STOP[kind]),
        completion("many", prompt(16, 20), 10, n_cmpl=2),
        completion("adapted", prompt(17, 20), 15, lora=[{"id": 0, "scale": 1.0}]),
        chat("chat", "Tell me more.", 10),
        chat("chat stream", "Tell me less.", 10, stream=True),
        Ask("embedding", "/embedding", {"content": "to be placed"}),
    ]
    if kind == PLAIN:
        asks.append(completion("shifted", prompt(18, 240), 30, n_keep=10))
    return asks


def others(kind: str) -> list[Ask]:
    """What has no answer of its own, or one that depends on what is held."""
    moved = completion("moved", [*CUT[:30], *CUT[60:]], 5, n_cache_reuse=16)
    left = completion("left", prompt(20, 12), 200)
    return [
        *([moved] if kind == PLAIN else []),
        replace(left, leaves_after=0.05),
        Ask("save", "/slots/1?action=save", {"filename": "new"}),
        Ask("restore", "/slots/2?action=restore", {"filename": "kept"}),
        Ask("load", "/lora-adapters/load", {"name": "3"}),
        Ask("unload", "/lora-adapters/unload", {"id": 1}),
        Ask("slots", "/slots"),
        Ask("metrics", "/metrics"),
        Ask("template", "/apply-template", {"messages": [{"role": "user", "content": "x"}]}),
    ]


async def warm(rig: Rig) -> None:
    """State in every slot and in the trie, a slot file; the trie has lost nothing that the slots hold."""
    for slot, tokens in enumerate((TAKEN, CUT, SAVED, prompt(5, 10))):
        await rig.ask(completion("warm", tokens, 4, id_slot=slot))
    assert (await rig.ask(Ask("warm", "/slots/2?action=save", {"filename": "kept"}))).error is None
    for slot in range(4):
        await rig.ask(completion("warm", prompt(6 + slot, 12), 4, id_slot=slot))
    await rig.settle()


def folders(base: Path) -> list[str]:
    for name in ("disk", "slots", "lora"):
        (base / name).mkdir(exist_ok=True, parents=True)
    (base / "lora" / "3").write_bytes(b"")
    disk = ["--cache-disk", str(base / "disk"), "--cache-disk-prefetch", "wait"]
    return [*disk, "--slot-save-path", str(base / "slots"), "--lora-dir", str(base / "lora")]


def options_of(kind: str) -> list[str]:
    return ["--context-shift"] if kind == PLAIN else []


def prepared(kind: str, base: Path) -> dict[str, Outcome]:
    """Puts into ``base`` what an earlier server left. What each generation gives cold, on its own."""
    key = (kind,)
    if key not in _cold:
        left = base.parent / f"{base.name}-left"
        with pytest.MonkeyPatch.context() as monkeypatch:
            _cold[key] = asyncio.run(_prepare(monkeypatch, kind, left)), left
    found, left = _cold[key]
    shutil.copytree(left, base, dirs_exist_ok=True)
    return found


async def _prepare(monkeypatch: pytest.MonkeyPatch, kind: str, left: Path) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    async with running(monkeypatch, kind, *options_of(kind), "--cache-ram", "0") as rig:
        for ask in generations(kind):
            found[ask.name] = await rig.ask(Ask(ask.name, ask.path, {**ask.body, "cache_prompt": False}))
            assert found[ask.name].error is None, (ask.name, found[ask.name])
            assert found[ask.name].text, ask.name
    async with running(monkeypatch, kind, *options_of(kind), *folders(left)) as rig:
        await rig.ask(completion("disk", ON_DISK, 4))
    return found
