"""An engine on a tiny model whose events are collected by task."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import mlx.core as mx

from mlxserver.engine.config import EngineConfig
from mlxserver.engine.engine import Engine
from mlxserver.engine.mailbox import SlotAction, SlotOutcome, Submit
from mlxserver.engine.task import Event, Failed, Finished, Task, Token
from mlxserver.models.caches import cache_maker
from mlxserver.models.model import Model, ModelInfo
from mlxserver.sampling.params import SamplingParams
from tests.models import tiny

GREEDY = SamplingParams(temperature=0.0)
CONFIG = EngineConfig(
    n_slots=4,
    n_ctx=2048,
    n_ctx_slot=512,
    kv_unified=False,
    n_batch=64,
    n_ubatch=32,
    cont_batching=True,
    slot_prompt_similarity=0.1,
    cache_type_k="f32",
    cache_type_v="f32",
)
PROMPTS: list[tuple[int, ...]] = [
    (5, 17, 200, 33, 8),
    (90, 14, 3),
    tuple(range(40, 63)),
    (7,) * 9 + (100, 101),
]


class Letters:
    """A vocabulary in which token i is the byte i; nothing ends a generation unless ``eog_ids`` says so."""

    n_vocab = tiny.VOCAB
    bos_id = eos_id = sep_id = fim_pre = fim_suf = fim_mid = fim_rep = fim_sep = -1
    add_bos = add_eos = False

    def __init__(self, eog_ids: frozenset[int] = frozenset()) -> None:
        self.eog_ids = eog_ids

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        return list(text.encode())

    def piece(self, token: int, special: bool = True) -> bytes:
        return bytes([token])

    def decode(self, tokens: Sequence[int], special: bool = True) -> bytes:
        return bytes(tokens)

    def is_special(self, token: int) -> bool:
        return False


class Bench:
    """An engine whose events are collected by task."""

    def __init__(
        self, module: Any, eog_ids: frozenset[int] = frozenset(), rope: str = "", **changes: Any
    ) -> None:
        info = ModelInfo("tiny", "tiny", tiny.VOCAB, 512, tiny.HIDDEN, 0, 0, "all F32", rope=rope)
        self.events: list[Event] = []
        self.changed = threading.Condition()
        self.errors: list[BaseException] = []
        ready = threading.Event()
        config = replace(CONFIG, **changes)

        def failed(error: BaseException) -> None:
            with self.changed:
                self.errors.append(error)
                self.changed.notify_all()
            ready.set()

        def load() -> tuple[Model, EngineConfig]:
            built = module() if callable(module) and not hasattr(module, "parameters") else module
            return Model(built, Letters(eog_ids), info), config

        self.engine = Engine(load, self.emit, lambda *_: ready.set(), failed)
        self.engine.start()
        assert ready.wait(60)
        if self.errors:
            raise self.errors[0]

    def emit(self, events: list[Event]) -> None:
        with self.changed:
            self.events += events
            self.changed.notify_all()

    def submit(self, task_id: int, tokens: Sequence[int], **fields: Any) -> None:
        self.engine.post(Submit(Task(task_id, tuple(tokens), **{"sampling": GREEDY, **fields})))

    def of(self, task_id: int, kind: type) -> list[Any]:
        with self.changed:
            return [e for e in self.events if e.task_id == task_id and isinstance(e, kind)]

    def wait(self, condition: Any, seconds: float = 60) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, seconds), "nothing came"

    def finish(self, *task_ids: int) -> list[list[int]]:
        def ended() -> bool:
            done = {e.task_id for e in self.events if isinstance(e, (Finished, Failed))}
            return done >= set(task_ids)

        self.wait(ended)
        return [[e.token for e in self.of(task_id, Token)] for task_id in task_ids]

    @contextmanager
    def held(self, idle_slot: int = 0) -> Iterator[None]:
        """The engine waits meanwhile: it reads what is submitted all at once. Empties an idle slot."""
        waits, goes_on = threading.Event(), threading.Event()

        def reply(outcome: SlotOutcome) -> None:
            waits.set()
            assert goes_on.wait(60)

        self.engine.post(SlotAction("erase", idle_slot, None, reply))
        assert waits.wait(60)
        try:
            yield
        finally:
            goes_on.set()

    def close(self) -> None:
        self.engine.close(30)


def oracle(module: Any, prompt: Sequence[int], n: int) -> list[int]:
    cache = cache_maker(module)()
    tokens, out = list(prompt), []
    for _ in range(n):
        logits = module(mx.array([tokens]), cache=cache)[:, -1]
        tokens = [mx.argmax(logits, axis=-1).item()]
        out += tokens
    return out
