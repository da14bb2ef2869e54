"""An engine without a model: tokens come from a script; they are bytes, beside a few special ones."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from mlxserver.api.adapter_list import AdapterList
from mlxserver.api.state import Ready, ServerState
from mlxserver.engine.task import (
    Candidate,
    Event,
    Failed,
    Finished,
    PromptProgress,
    Started,
    Task,
    Token,
    TokenProbs,
)
from mlxserver.models.model import Model, ModelInfo
from mlxserver.options.options import parse_command_line

EOS, BOS, TAG = 256, 257, 258
SPECIAL = {EOS: b"<|end|>", BOS: b"<s>", TAG: b"<tag>"}


class ByteTokenizer:
    n_vocab = 300
    bos_id, eos_id = BOS, EOS
    add_bos, add_eos = True, False
    sep_id, add_sep = -1, False
    eog_ids = frozenset({EOS})
    fim_pre = fim_suf = fim_mid = fim_rep = fim_sep = -1

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        ids, rest = [BOS] if add_special else [], text.encode()
        while rest:
            found = next((i for i, name in SPECIAL.items() if parse_special and rest.startswith(name)), None)
            ids.append(rest[0] if found is None else found)
            rest = rest[len(SPECIAL[found]) if found is not None else 1 :]
        return ids

    def piece(self, token: int, special: bool = True) -> bytes:
        if token in SPECIAL:
            return SPECIAL[token] if special else b""
        return bytes([token]) if token < 256 else b"?"

    def decode(self, tokens: Sequence[int], special: bool = True) -> bytes:
        return b"".join(self.piece(token, special) for token in tokens)

    def is_special(self, token: int) -> bool:
        return token in SPECIAL


Script = Sequence[int] | Failed


@dataclass
class FakeRun:
    """One event list per step; like the real engine it is a token ahead of whoever stops it."""

    task: Task
    task_id: int
    script: list[int]
    slot_id: int = 0
    failure: Failed | None = None
    children: tuple[FakeRun, ...] = ()
    n_past: int = 0
    n_disk: int | None = None
    hangs_after: int | None = None
    shifted_after: int | None = None
    cancelled: bool = False
    reasoning_ended: bool = False
    stopped_at: int | None = None
    _num_tokens: int = 0
    _steps: int = 0
    _clock: Callable[[], float] = field(default_factory=lambda: itertools.count(1.0, 0.01).__next__)

    async def events(self) -> list[Event]:
        await asyncio.sleep(0)
        if self.hangs_after is not None and self._steps > self.hangs_after:
            await asyncio.Event().wait()
        self._steps += 1
        return self._begin() if self._steps == 1 else self._step()

    def _begin(self) -> list[Event]:
        if self.failure is not None and not self.script:
            return [self.failure]
        n_prompt = len(self.task.tokens)
        if n_prompt == 0:
            return [Finished(self.task_id, "none", False, 0, self._clock())]
        past = self.n_past, self._clock(), self.n_disk
        events: list[Event] = [Started(self.task_id, self.slot_id, n_prompt, *past)]
        if self.task.return_progress:
            events += [
                PromptProgress(self.task_id, n_prompt, self.n_past, min(done, n_prompt), self._clock())
                for done in range(self.n_past + 4, n_prompt + 4, 4)
            ]
        return events

    def _step(self) -> list[Event]:
        if self._num_tokens >= len(self.script) and self.failure is not None:
            return [self.failure]
        token = self.script[self._num_tokens]
        self._num_tokens += 1
        n_probs = self.task.sampling.n_probs
        events: list[Event] = [Token(self.task_id, token, self._clock(), _probs(token, n_probs))]
        limit = self.task.n_predict if self.task.n_predict != 0 else 1
        if self.stopped_at is not None:
            events.append(self._finished("stop", self.stopped_at))
        elif token == EOS:
            events.append(self._finished("eos", self._num_tokens))
        elif self._num_tokens == limit or (self.failure is None and self._num_tokens == len(self.script)):
            events.append(self._finished("limit", self._num_tokens))
        return events

    def _finished(self, reason: Any, n_generated: int) -> Finished:
        n_tokens = len(self.task.tokens) + n_generated - 1
        truncated = reason == "limit" and self._num_tokens == len(self.script) != self.task.n_predict
        truncated |= self.shifted_after is not None and self.shifted_after < n_generated
        return Finished(self.task_id, reason, truncated, n_tokens, self._clock(), self.shifted_after)

    def stop(self, n_generated: int) -> None:
        self.stopped_at = n_generated

    def end_reasoning(self) -> None:
        self.reasoning_ended = True

    def cancel(self) -> None:
        self.cancelled = True


def _probs(token: int, n_probs: int) -> TokenProbs | None:
    if n_probs <= 0:
        return None
    return TokenProbs(Candidate(token, -0.5), tuple(Candidate(token + i, -0.5 - i) for i in range(n_probs)))


class FakeEngine:
    """Gives each submitted task the next script: a text, a list of tokens, or a failure."""

    n_ctx = 512
    n_open = 0

    def __init__(self, *scripts: str | Sequence[int] | Failed, n_slots: int = 4, **run_fields: Any) -> None:
        self.n_slots = n_slots
        self.runs: list[FakeRun] = []
        self._scripts = itertools.cycle(scripts or ["a"])
        self._run_fields = run_fields
        self._ids = itertools.count()

    def new_task_id(self) -> int:
        return next(self._ids)

    def submit(self, task: Task) -> FakeRun:
        script = next(self._scripts)
        children = tuple(self._run(task, child_id, script) for child_id, _ in task.children)
        run = self._run(task, task.id, script)
        run.children = children
        self.runs += [run, *children]
        return run

    def _run(self, task: Task, task_id: int, script: str | Sequence[int] | Failed) -> FakeRun:
        failure = script if isinstance(script, Failed) else None
        tokens: list[int] = []
        if failure is None:
            tokens = list(script.encode()) if isinstance(script, str) else list(script)
        return FakeRun(task, task_id, tokens, failure=failure, **self._run_fields)


def fake_state(engine: FakeEngine, *argv: str, **info: Any) -> ServerState:
    """A server's state around ``engine``, with the options of a command line."""
    fields = {"architecture": "fake", "n_vocab": 300, "n_ctx_train": 512, "n_embd": 8, "n_params": 1}
    model_info = ModelInfo(path="fake.gguf", size=1, ftype="all F32", **(fields | info))
    model = Model(module=None, tokenizer=ByteTokenizer(), info=model_info)
    options = parse_command_line(["-m", "fake.gguf", *argv], {})
    ready = Ready(model, engine, SimpleNamespace(), AdapterList())  # type: ignore[arg-type]
    return ServerState(options=options, ready=ready)
