"""The points at which the tests inject faults: what is called there, and whose an error is."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from mlxserver.engine.mailbox import SlotAction
from tests.faults.rig import Rig, current

KINDS = ("llama", "gemma3", "falcon_h1")
"""Plain attention; sliding windows; recurrent state beside plain attention."""
CANNOT_UNDO = {"gemma3"}
"""A step whose rows cannot be put back fails as a whole."""


class Fault(Exception):
    pass


@dataclass(frozen=True)
class Hit:
    """A call at which the fault is raised."""

    rig: Rig
    kind: str
    args: tuple[Any, ...]

    def tasks(self, task_ids: Sequence[int]) -> set[str]:
        return {self.rig.names[task_id] for task_id in task_ids}

    def slots(self, slots: Sequence[int]) -> set[str]:
        return self.tasks([self.rig.scheduler.slots[slot].task_id for slot in slots])


Owners = Callable[[Hit], set[str]]


@dataclass(frozen=True)
class Point:
    name: str
    where: str
    """``module:attribute`` of a callable."""
    owners: Owners
    kinds: tuple[str, ...] = KINDS[:1]
    argv: tuple[str, ...] = ()
    remakes: bool = False
    """Slots and trie are made anew."""
    later: int = 3
    """The later call that fails; 0: there is but one."""
    after: bool = True
    """Whether an error may also come when the work is done."""
    when: Callable[..., bool] = lambda *args: True
    """Which calls count."""
    may_have_ended: bool = False
    """A step runs ahead of what is known: a row of it may be of a request that has its answer."""


# ------------------------------------------------------------------ whose error


def nobody(hit: Hit) -> set[str]:
    return set()


def request(hit: Hit) -> set[str]:
    """The one whose handler calls."""
    return {current.get()}


def asking_or_nobody(hit: Hit) -> set[str]:
    return request(hit) if in_function("snapshot") else set()


def all_that_run(hit: Hit) -> set[str]:
    return hit.tasks(hit.rig.scheduler.running())


def submitted(hit: Hit) -> set[str]:
    return all_that_run(hit) | hit.tasks([hit.args[1].id])


def of_item(hit: Hit) -> set[str]:
    """A move, a chunk or a join."""
    return hit.tasks([next(arg.task_id for arg in hit.args[1:] if hasattr(arg, "task_id"))])


def of_items(hit: Hit) -> set[str]:
    return hit.tasks([item.task_id for item in hit.args[1]])


def of_slot(hit: Hit) -> set[str]:
    return hit.slots([hit.args[1]])


def rows(hit: Hit) -> set[str]:
    """Rows that failed together are tried one by one, where their state can be put back."""
    slots = hit.args[1] if isinstance(hit.args[1], (list, tuple)) else hit.args[2]
    return hit.slots(slots) if len(slots) == 1 or hit.kind in CANNOT_UNDO else set()


def of_step(hit: Hit) -> set[str]:
    """What is evaluated: a prompt chunk, or the rows of a step."""
    for frame in _frames():
        found = frame.f_locals
        if frame.f_code.co_name == "_prompt":
            return hit.tasks([found["chunk"].task_id])
        if frame.f_code.co_name == "_prompts_together":
            return set()
        if frame.f_code.co_name == "_forward":
            tasks = [row.task_id for row in found["rows"]]
            is_one = len(tasks) == 1 and not found["step"].joint
            return hit.tasks(tasks) if is_one or hit.kind in CANNOT_UNDO else set()
    raise AssertionError("nothing is evaluated")


def of_join(hit: Hit) -> set[str]:
    return hit.tasks(
        [next(frame.f_locals["join"].task_id for frame in _frames() if "join" in frame.f_locals)]
    )


def of_row(hit: Hit) -> set[str]:
    return hit.tasks(
        [frame.f_locals["decode"].task_id for frame in _frames() if "decode" in frame.f_locals][:1]
    )


def in_function(name: str) -> bool:
    return any(frame.f_code.co_name == name for frame in _frames())


def read_back(hit: Hit) -> set[str]:
    return hit.tasks([item.task_id for item in (*hit.args[2], *hit.args[1].joint)])


def of_frames(hit: Hit) -> set[str]:
    """What state is moved for: a slot action, a task, or the disk tier, which fails nobody."""
    for frame in _frames():
        if isinstance(action := frame.f_locals.get("action"), SlotAction):
            return {action.kind}
        if frame.f_code.co_name in ("_guarded", "publish"):
            return set()
    for frame in _frames():
        if hasattr(move := frame.f_locals.get("move"), "task_id"):
            return hit.tasks([move.task_id])
    raise AssertionError("nobody knows whose state this is")


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def named(*names: str) -> Owners:
    return lambda hit: set(names)


E = "mlxserver.engine."
K = "mlxserver.kv."
A = "mlxserver.api."
S = "mlxserver.sampling."

POINTS = [
    # the engine's rounds
    Point("taking in a request", E + "scheduler:Scheduler.submit", submitted, remakes=True),
    Point("ending at a stop string", E + "scheduler:Scheduler.stop", all_that_run, remakes=True, later=0),
    Point(
        "ending a request that was left",
        E + "scheduler:Scheduler.cancel",
        all_that_run,
        remakes=True,
        later=0,
    ),
    Point("planning", E + "scheduler:Scheduler.plan", all_that_run, KINDS, remakes=True, later=20),
    Point("looking for state to take over", E + "reuse:Reuse.take_over", all_that_run, remakes=True),
    Point("committing", E + "scheduler:Scheduler.commit", all_that_run, KINDS, remakes=True, later=20),
    Point("handing out events", E + "client:EngineClient.receive", all_that_run, remakes=True, later=20),
    Point(
        "telling of blocks",
        E + "block_watch:BlockWatch.look",
        all_that_run,
        argv=("--kv-events",),
        remakes=True,
        later=20,
    ),
    Point("a slot's reservation", E + "scheduler:Scheduler.reserve", all_that_run, remakes=True, later=2),
    # steps
    Point("prompt chunk", E + "runner:Runner._prompt", of_item, KINDS, later=1),
    Point("prompts and rows in a pass", E + "forward_pass:ForwardPass.joint", nobody, later=2),
    Point("pass of several slots", K + "slot_states:SlotStates.ragged", nobody, later=0),
    Point("compiled step", K + "slot_states:SlotStates.decode_fixed", nobody, later=1),
    Point("joining", S + "sampler:Sampler.begin", of_slot, KINDS),
    Point(
        "changing places", K + "slot_states:SlotStates.arrange_passes", all_that_run, remakes=True, later=8
    ),
    Point(
        "decode launch",
        K + "slot_states:SlotStates.decode",
        rows,
        KINDS,
        later=20,
        after=False,
        may_have_ended=True,
    ),
    Point(
        "merging rows",
        K + "batched_state:BatchedState.many",
        of_step,
        KINDS[1:],
        later=30,
        may_have_ended=True,
        when=lambda self, rows: len(rows) > 1,
    ),
    Point("sampling", S + "group:Group.sample", of_step, KINDS, later=20, may_have_ended=True),
    Point(
        "sending a step off",
        "mlx.core:async_eval",
        of_step,
        KINDS,
        later=20,
        may_have_ended=True,
        when=lambda *arrays: in_function("_forward"),
    ),
    Point(
        "grammar mask", S + "grammar.state:GrammarState.fill", of_step, KINDS, later=5, may_have_ended=True
    ),
    Point(
        "reading tokens back",
        E + "runner:Runner._read",
        read_back,
        KINDS,
        later=20,
        after=False,
        may_have_ended=True,
    ),
    Point("taking in a token", S + "sampler:Sampler.accept", of_slot, KINDS, later=30),
    Point("log-probabilities", S + "sampler:Sampled.probs", of_row, KINDS, later=30),
    Point("embedding launch", E + "embedder:Embedder.launch", of_items, later=0),
    Point("embedding read", E + "embedder:Embedder.read", of_items, later=0),
    Point(
        "adapters of a step",
        "mlxserver.models.lora.loaded:LoadedAdapters.use",
        of_step,
        KINDS,
        later=20,
        after=False,
        may_have_ended=True,
    ),
    # state
    Point("storing in the trie", K + "trie:PrefixTrie.insert", of_frames, KINDS),
    Point(
        "eviction",
        K + "trie:PrefixTrie._evict_one",
        of_frames,
        KINDS,
        argv=("--cache-ram", "1"),
        later=2,
        when=lambda *args: not in_function("reserve"),
    ),
    Point("splitting a node", K + "spans:KVSpan.split", of_frames, later=2),
    Point("reading keys and values", K + "slot_states:SlotStates.read_span", of_frames, KINDS),
    Point("taking over from the trie", E + "mover:Mover._load", of_item, KINDS, after=False, later=2),
    Point(
        "copying from a slot",
        K + "slot_states:SlotStates.copy",
        of_frames,
        KINDS,
        later=0,
        when=lambda self, source, target, *rest: source != target,
    ),
    Point("cutting a slot", K + "slot_states:SlotStates.truncate", of_frames, KINDS),
    Point("context shift", K + "slot_states:SlotStates.discard", of_frames, later=0),
    Point("moving keys", K + "shifter:Shifter.moved", of_frames, later=2),
    Point("snapshot read", K + "slot_states:SlotStates.read_snapshot", of_frames, KINDS[1:]),
    Point("snapshot write", K + "slot_states:SlotStates.write_snapshot", of_frames, KINDS[1:], later=2),
    # files
    Point("slot file save", E + "slot_actions:write_slot_file", named("save"), KINDS, later=0),
    Point(
        "slot file restore",
        E + "slot_actions:read_slot_file",
        named("restore"),
        KINDS,
        later=0,
    ),
    Point("asking the disk tier", K + "disk.store:DiskStore.find", nobody),
    Point("disk read", K + "disk.store:DiskStore.read", nobody, KINDS, later=0),
    Point("publishing what was read", E + "publisher:Publisher.publish", nobody, KINDS, later=0),
    Point(
        "taking note of what was read", E + "scheduler:Scheduler.arrived", all_that_run, remakes=True, later=0
    ),
    Point("handing state to the disk tier", E + "write_behind:WriteBehind._write", nobody, KINDS),
    Point("disk write", K + "disk.writer:Writer._write_one", nobody, KINDS),
    Point("disk tier's figures", K + "disk.store:DiskStore.stats", asking_or_nobody, later=0),
    Point("adapter load", E + "adapters:AdapterActions.load", named("load"), later=0),
    Point("forgetting adapters", E + "adapters:AdapterActions.tidy", all_that_run, remakes=True, later=0),
    # HTTP and text
    Point(
        "reading fields",
        A + "completion_runner:read_completion_request",
        request,
    ),
    Point("tokenising", A + "completion_runner:tokenize_prompts", request),
    Point("template rendering", "mlxserver.chat.template:JinjaTemplate.render", request),
    Point("grammar compilation", S + "grammar.compiler:GrammarCompiler.check", request, later=0),
    Point(
        "grammar of a slot",
        S + "grammar.compiler:GrammarCompiler.matcher",
        of_join,
        later=0,
        when=lambda *args: in_function("_join"),
    ),
    Point(
        "delivering events", E + "client:Run.deliver", lambda hit: hit.tasks([hit.args[0].task_id]), later=40
    ),
    Point("text of a token", "mlxserver.chat.text_stream:TextStream.add", request, later=40),
    Point("event of a stream", A + "completion_runner:frame", request, later=10),
    Point("answer", A + "completion_runner:json_response", request),
    Point("writing a response", "starlette.responses:Response.__call__", request, after=False),
    Point("writing a stream", A + "sse:EventStream._send_all", request, after=False, later=2),
    Point("slots", E + "engine:Engine.snapshot", request, later=2),
    Point("metrics", "mlxserver.telemetry.metrics:Metrics.render", request, later=0),
    Point("counting requests", "mlxserver.telemetry.metrics:Metrics.request_done", nobody),
]


class Trap:
    """Raises once, at the ``nth`` call that counts after ``arm``; before the work, or when it is done."""

    def __init__(
        self, point: Point, kind: str, nth: int, is_after: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._point, self._kind, self._nth, self._is_after = point, kind, nth, is_after
        self._rig: Rig | None = None
        self.n_calls = 0
        self.owners: set[str] | None = None
        """Of the request names; None where nothing was raised."""
        module, _, path = point.where.partition(":")
        *owner, name = path.split(".")
        target: Any = importlib.import_module(module)
        for each in owner:
            target = getattr(target, each)
        self._original = getattr(target, name)
        monkeypatch.setattr(target, name, self._wrapper())

    def arm(self, rig: Rig) -> None:
        self._rig = rig

    def _wrapper(self) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            is_it = self._counts(args)
            if is_it and not self._is_after:
                self._spring(args)
            result = self._original(*args, **kwargs)
            if is_it:
                self._spring(args)
            return result

        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._counts(args):
                self._spring(args)
            return await self._original(*args, **kwargs)

        return async_wrapper if inspect.iscoroutinefunction(self._original) else wrapper

    def _counts(self, args: tuple[Any, ...]) -> bool:
        if self._rig is None or not self._point.when(*args):
            return False
        self.n_calls += 1
        return self.n_calls == self._nth

    def _spring(self, args: tuple[Any, ...]) -> None:
        assert self._rig is not None
        self.owners = self._point.owners(Hit(self._rig, self._kind, args))
        raise Fault("a fault")
