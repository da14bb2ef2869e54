"""The reader's thread: whose turn it is, and what follows a stop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from mlxserver.engine.disk_tier import Part
from mlxserver.engine.reader import Arrived, Reader, Reading

Ref = tuple[str, int]


class Desk:
    """A reader that waits at each file until it may go on."""

    def __init__(self) -> None:
        self.arrived: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        self.at: queue.SimpleQueue[Ref] = queue.SimpleQueue()
        self.may_go_on = threading.Semaphore(0)
        self.has_ended = threading.Event()
        self.reader = Reader(self.read, self.arrived.put, self.has_ended.set)

    def read(self, refs: Sequence[Any], is_stopped: Callable[[], bool]) -> Part | None:
        for ref in refs:
            if is_stopped():
                return None
            self.at.put(ref)
            self.may_go_on.acquire()
            if ref[1] < 0:
                raise OSError("a bad sector")
        return Part(0, len(refs), len(refs), 1, refs)

    def begin(self, name: str, serial: int, *chunks: Sequence[int], is_urgent: bool = False) -> Reading:
        refs: Any = tuple(tuple((name, file) for file in chunk) for chunk in chunks)
        reading = Reading(refs, serial, is_urgent)
        self.reader.begin(reading)
        return reading

    def next_file(self) -> Ref:
        return self.at.get(timeout=10)

    def message(self) -> Arrived:
        return self.arrived.get(timeout=10)

    def let(self, n: int = 1) -> None:
        self.may_go_on.release(n)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.let(100)
    desk.reader.close(10)
    assert desk.has_ended.wait(10)


def test_chunks_come_in_order_and_the_last_one_ends_it(desk: Desk) -> None:
    reading = desk.begin("a", 0, [1, 2], [3])
    desk.let(3)
    first, second = desk.message(), desk.message()
    assert (first.reading, first.index, first.is_last) == (reading, 0, False)
    assert first.part is not None and first.part.state == (("a", 1), ("a", 2))
    assert (second.index, second.is_last, second.error) == (1, True, "")
    assert not desk.reader.stop(reading), "the last message is there already"


def test_urgent_ones_go_first_then_the_oldest(desk: Desk) -> None:
    desk.begin("first", 0, [1], [2])
    assert desk.next_file() == ("first", 1)
    desk.begin("newer", 2, [1])
    late = desk.begin("late", 3, [1], [2])
    desk.begin("older", 1, [1])
    desk.reader.hurry(late)
    desk.let(6)
    files = [desk.next_file() for _ in range(5)]
    assert files == [("late", 1), ("late", 2), ("first", 2), ("older", 1), ("newer", 1)]


def test_a_reading_that_is_not_in_flight_is_stopped_at_once(desk: Desk) -> None:
    desk.begin("a", 0, [1])
    assert desk.next_file() == ("a", 1)
    waiting = desk.begin("b", 1, [1])
    assert desk.reader.stop(waiting)
    desk.let(2)
    assert desk.message().reading is not waiting
    assert desk.arrived.empty()


def test_after_a_stop_no_file_is_begun_and_one_message_tells_the_end(desk: Desk) -> None:
    reading = desk.begin("a", 0, [1, 2, 3], [4])
    assert desk.next_file() == ("a", 1)
    assert not desk.reader.stop(reading)
    desk.let(10)
    message = desk.message()
    assert (message.part, message.is_last, message.error) == (None, True, "")
    desk.begin("b", 1, [7])
    assert desk.next_file() == ("b", 7)
    assert desk.message().reading is not reading


def test_what_was_in_flight_to_its_end_is_told_before_the_end(desk: Desk) -> None:
    reading = desk.begin("a", 0, [1], [2])
    assert desk.next_file() == ("a", 1)
    assert not desk.reader.stop(reading)
    desk.let(1)
    messages = [desk.message(), desk.message()]
    assert [message.is_last for message in messages] == [False, True]


def test_an_error_ends_its_reading_alone(desk: Desk) -> None:
    desk.begin("a", 0, [1], [-1], [3])
    desk.begin("b", 1, [1])
    desk.let(10)
    messages = [desk.message() for _ in range(3)]
    assert [(m.error, m.is_last) for m in messages] == [("", False), ("a bad sector", True), ("", True)]


def test_closing_waits_for_one_file_at_most() -> None:
    desk = Desk()
    desk.begin("a", 0, [1, 2], [3])
    assert desk.next_file() == ("a", 1)
    desk.reader.close(0.05)
    assert not desk.has_ended.is_set()
    desk.let(1)
    assert desk.has_ended.wait(10)
    assert desk.at.empty()
