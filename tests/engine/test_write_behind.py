"""What goes to the disk of a slot's state, on a store that only takes notes."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from mlxserver.engine.slot import Slot
from mlxserver.engine.write_behind import WriteBehind
from mlxserver.kv.disk.store import Missing
from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from tests.models import tiny


class Notes:
    """A store in which nothing is yet."""

    def __init__(self) -> None:
        self.puts: list[tuple[tuple[int, ...], int, bool]] = []
        self.start = 0
        self.queued_bytes = 0

    def missing(self, identity: CacheIdentity, tokens: Any, has_snapshot: bool) -> Missing:
        return Missing(self.start, len(tokens), has_snapshot)

    def put(self, identity: CacheIdentity, tokens: Any, start: int, span: Any, snapshot: Any) -> bool:
        self.puts.append((tuple(tokens), start, snapshot is not None))
        self.start = len(tokens)
        return True

    def stats(self) -> Any:
        return SimpleNamespace(queued_bytes=self.queued_bytes)


class Desk:
    """One slot with the state of ``n`` tokens."""

    def __init__(self, n: int, make: Any = tiny.llama, limit: int = 2**30) -> None:
        module = make()
        self.states = SlotStates(cache_maker(module), 1, KV_TYPES["f32"], KV_TYPES["f32"])
        module(mx.array([list(range(n))]), cache=self.states.prompt_chunk(0, n))
        self.store: Any = Notes()
        self.writes = WriteBehind(self.store, self.states, limit)
        self.slot = Slot(0, 512)

    def note(self, tokens: list[int], **fields: Any) -> None:
        self.slot.tokens = tokens
        for name, value in fields.items():
            setattr(self.slot, name, value)
        self.writes.note(self.slot)
        for _ in range(3):
            self.writes.work()


def test_all_that_a_slot_holds_is_handed_over_once() -> None:
    desk = Desk(40)
    desk.note(list(range(40)))
    assert desk.store.puts == [(tuple(range(40)), 0, False)]
    assert not desk.writes.is_busy and desk.writes.wake_at is None


def test_what_a_slot_does_not_hold_is_not_written(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(30)
    with caplog.at_level(logging.WARNING):
        desk.note(list(range(40)))
    assert desk.store.puts == [] and caplog.text == "" and not desk.writes.is_busy


@pytest.mark.parametrize("fields", [{"exact_until": 20}, {"identity": CacheIdentity(is_shifted=True)}])
def test_moved_state_is_not_written(fields: dict[str, Any]) -> None:
    desk = Desk(40)
    desk.note(list(range(40)), **fields)
    assert desk.store.puts == ([(tuple(range(20)), 0, False)] if "exact_until" in fields else [])


def test_moved_state_that_the_trie_takes_in_is_not_written() -> None:
    desk = Desk(40)
    desk.writes.saved(0, CacheIdentity(is_shifted=True), range(40), None)
    assert desk.store.puts == []
    desk.writes.saved(0, BASE_IDENTITY, range(40), None)
    assert len(desk.store.puts) == 1


def test_a_step_that_ran_ahead_is_not_in_the_snapshot() -> None:
    """A window that has not wrapped can be cut back to what the request gave."""
    desk = Desk(12, tiny.gemma3)
    desk.note(list(range(10)))
    assert desk.store.puts == [(tuple(range(10)), 0, True)]
    assert desk.states.length(0) == 10


def test_state_that_cannot_be_cut_back_is_not_written() -> None:
    desk = Desk(100, tiny.mamba2)
    desk.note(list(range(90)))
    desk.note(list(range(100)), exact_until=50)
    assert desk.store.puts == []


def test_a_slot_that_has_gone_on_is_left_alone() -> None:
    desk = Desk(40)
    desk.slot.tokens = list(range(40))
    desk.writes.note(desk.slot)
    desk.slot.tokens = [7]
    desk.writes.work()
    assert desk.store.puts == [] and not desk.writes.is_busy


def test_a_full_queue_is_asked_again_later() -> None:
    desk = Desk(40)
    desk.store.queued_bytes = 2**30
    desk.note(list(range(40)))
    assert desk.store.puts == [] and not desk.writes.is_busy and desk.writes.wake_at is not None
    desk.store.queued_bytes = 0
    desk.writes.finish(5)
    assert len(desk.store.puts) == 1


def test_what_no_queue_could_hold_is_left_out() -> None:
    desk = Desk(40, limit=10)
    desk.note(list(range(40)))
    assert desk.store.puts == [] and desk.writes.wake_at is None


def test_the_end_does_not_wait_for_ever() -> None:
    desk = Desk(40)
    desk.store.queued_bytes = 2**30
    desk.note(list(range(40)))
    desk.writes.finish(0.1)
    assert desk.store.puts == []


def test_an_error_costs_the_writing_alone(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(40)
    desk.store.put = lambda *_: 1 / 0
    desk.note(list(range(40)))
    assert "cannot be written" in caplog.text and not desk.writes.is_busy
