"""The ways in which the server comes to a state, each as a trace to hold against the cold one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Literal

from mlxserver.validate.lab import Lab, Target
from mlxserver.validate.metrics import Rows
from mlxserver.validate.rig import PathError, Rig

Kind = Literal["exact", "bounded"]
PLACES = HERE, ELSEWHERE, STORED = "the same slot", "another slot", "stored"
N_OTHER = 16
"""Tokens of another text that a slot holds before it is cut back."""
SHORTEST_RUN = 16
"""``n_cache_reuse``."""


class NotPossible(Exception):
    """The model has no such path; the line says why."""


@dataclass(frozen=True, slots=True)
class Path:
    """``run`` yields rows of the trace; they are positions of ``target``'s cold trace."""

    name: str
    kind: Kind
    run: Callable[[Lab], Iterator[Rows]]
    target: Target = Target()


def all_paths(lab: Lab) -> list[Path]:
    """Paths of one cold trace stand together."""
    plan = lab.plan
    middle = plan.cuts[len(plan.cuts) // 2]
    moved = Target(is_shortened=True)
    # a rounding that depends on where chunks end may tip a quantised number over to the next step
    sums: Kind = "bounded" if lab.is_quantised else "exact"
    at = {cut: Target(cut=cut if lab.is_quantised else 0) for cut in plan.cuts}
    return [
        *(Path(f"prompt chunks of {size}", sums, _chunks(size)) for size in plan.chunks),
        *(Path(f"batch of {width}", sums, _batch(width)) for width in plan.widths),
        *(Path(f"KV {name}", "bounded", _cold(name)) for name in plan.kv_types),
        *(Path(f"prefix hit at {cut}, {STORED}", "exact", _hit(cut), at[cut]) for cut in plan.cuts),
        Path(f"prefix hit at {middle}, {ELSEWHERE}", "exact", _copied(middle), at[middle]),
        Path(f"prefix hit at {middle}, {HERE}", "exact", _cut_back(middle), at[middle]),
        Path(f"restored from a file at {middle}", "exact", _restored(middle), at[middle]),
        *(Path(f"chunk reuse, {place}", "bounded", _reused(place), moved) for place in PLACES),
        Path("context shift", "bounded", _shifted, moved),
        *(path for name in plan.kv_types for path in _within(name, middle)),
    ]


def _within(kv_type: str, cut: int) -> list[Path]:
    """The hit against a cold run whose chunk ends where it does, and what that alone changes."""
    return [
        Path(f"KV {kv_type}, chunk ends at {cut}", "bounded", _cold(kv_type, cut), Target(kv_type)),
        Path(f"KV {kv_type}, prefix hit at {cut}", "exact", _hit(cut, kv_type), Target(kv_type, cut=cut)),
    ]


def _chunks(size: int) -> Callable[[Lab], Iterator[Rows]]:
    def run(lab: Lab) -> Iterator[Rows]:
        rig = lab.rig()
        return rig.read(rig.slots[0], lab.tokens, size)

    return run


def _hit(cut: int, kv_type: str = "") -> Callable[[Lab], Iterator[Rows]]:
    """From the trie; where state can be cut, out of the middle of a longer one."""

    def run(lab: Lab) -> Iterator[Rows]:
        rig = lab.rig(kv_type=kv_type)
        first, second = rig.slots[:2]
        rig.fill(first, lab.tokens[:cut])
        if rig.states.is_plain:
            rig.fill(first, lab.tokens[cut:])
        rig.keep(first)
        rig.empty(first)
        rig.take_over(second, lab.tokens[: cut + 1], cut)
        return rig.read(second, lab.tokens[cut:])

    return run


def _copied(cut: int) -> Callable[[Lab], Iterator[Rows]]:
    def run(lab: Lab) -> Iterator[Rows]:
        rig = lab.rig()
        first, second = rig.slots[:2]
        rig.fill(first, lab.tokens[:cut])
        rig.take_over(second, lab.tokens[: cut + 1], cut)
        return rig.read(second, lab.tokens[cut:])

    return run


def _cut_back(cut: int) -> Callable[[Lab], Iterator[Rows]]:
    """A slot that went on with another text returns to the common beginning."""

    def run(lab: Lab) -> Iterator[Rows]:
        rig = lab.rig(cache_ram=0)
        slot = rig.slots[0]
        rig.fill(slot, lab.tokens[:cut])
        rig.fill(slot, lab.other(cut, N_OTHER))
        if not rig.states.can_truncate(slot.id, cut):
            names = ", ".join(sorted({*rig.states.uncut}))
            raise NotPossible(f"the state of {names} cannot be cut back")
        rig.take_over(slot, lab.tokens[: cut + 1], cut)
        return rig.read(slot, lab.tokens[cut:])

    return run


def _restored(cut: int) -> Callable[[Lab], Iterator[Rows]]:
    def run(lab: Lab) -> Iterator[Rows]:
        rig = lab.rig()
        first, second = rig.slots[:2]
        rig.fill(first, lab.tokens[:cut])
        with tempfile.TemporaryDirectory() as folder:
            path = FilePath(folder) / "slot.safetensors"
            rig.act("save", first, path)
            rig.act("restore", second, path)
        if second.tokens != list(lab.tokens[:cut]):
            raise PathError("the file gave other tokens back")
        return rig.read(second, lab.tokens[cut:])

    return run


def _batch(width: int) -> Callable[[Lab], Iterator[Rows]]:
    """The text's last tokens, one by one, beside rows that hold other tokens and are of other lengths."""

    def run(lab: Lab) -> Iterator[Rows]:
        rig = lab.rig(n_slots=width)
        if width > 1 and (reason := rig.cannot_batch):
            raise NotPossible(f"slots decode one by one: {reason}")
        slots = rig.slots[:width]
        watched = slots[width // 2]
        start = len(lab.tokens) - lab.plan.n_decode
        rig.fill(watched, lab.tokens[:start])
        for index, slot in enumerate(slot for slot in slots if slot is not watched):
            # longer and shorter ones in turn: the text's row must see neither less nor more than its own
            n = start // (index + 1) if index % 2 else start + 13 * (index + 1)
            rig.fill(slot, lab.other(slot.id, n))
        for at in range(start, len(lab.tokens)):
            inputs = {slot.id: lab.other(at + slot.id, 1)[0] for slot in slots}
            yield rig.decode(inputs | {watched.id: lab.tokens[at]})[watched.id]

    return run


def _reused(place: str) -> Callable[[Lab], Iterator[Rows]]:
    """A stretch near the beginning is gone; what follows it is known from its old positions."""

    def run(lab: Lab) -> Iterator[Rows]:
        rig = _shiftable(lab)
        first, second = rig.slots[:2]
        rig.fill(first, lab.tokens[: lab.plan.known])
        slot = first if place == HERE else second
        if place == STORED:
            rig.keep(first)
            rig.empty(first)
        n = lab.plan.known - lab.plan.n_removed
        rig.take_over(slot, lab.shortened[: n + 1], n, SHORTEST_RUN)
        lab.check_first_layer(rig, slot.id)
        return rig.read(slot, lab.shortened[n:])

    return run


def _shifted(lab: Lab) -> Iterator[Rows]:
    rig = _shiftable(lab)
    slot = rig.slots[0]
    rig.fill(slot, lab.tokens[: lab.plan.known])
    rig.shift(slot, lab.plan.n_before, lab.plan.n_removed)
    lab.check_first_layer(rig, slot.id)
    return rig.read(slot, lab.shortened[len(slot.tokens) :])


def _shiftable(lab: Lab) -> Rig:
    rig = lab.rig()
    if reason := rig.states.cannot_shift:
        raise NotPossible(reason)
    return rig


def _cold(kv_type: str, cut: int = 0) -> Callable[[Lab], Iterator[Rows]]:
    def run(lab: Lab) -> Iterator[Rows]:
        rig = lab.rig(kv_type)
        yield from rig.read(rig.slots[0], lab.tokens[:cut])
        yield from rig.read(rig.slots[0], lab.tokens[cut:])

    return run
