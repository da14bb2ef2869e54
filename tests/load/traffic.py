"""Clients that ask, go away and meddle, each at random, until their time is up."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.load.cases import Case, words
from tests.load.cold import N_PROBS, Cold, Difference, request
from tests.load.dialects import DIALECTS, NATIVE, asked
from tests.load.http import Refused, abandon, ask

MAX_TOLD = 50
"""Errors and differences that are kept word for word; all are counted."""
LONGEST_ANSWER = 200
"""Tokens."""
SLOT_FILES = ("first", "second", "third", "fourth")
EMBEDDINGS_ERROR = "This server does not support embeddings. Start it with `--embeddings`"


@dataclass
class Tally:
    """What all clients did and met."""

    done: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Answers and failures of connections that nobody should see."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str, n: int = 1) -> None:
        with self.lock:
            self.done[what] += n

    def error(self, what: str) -> None:
        with self.lock:
            self.done["errors"] += 1
            if len(self.errors) < MAX_TOLD:
                self.errors.append(what)

    def difference(self, found: Difference) -> None:
        with self.lock:
            self.done["differences"] += 1
            if len(self.differences) < MAX_TOLD:
                self.differences.append(found)


@dataclass
class Client:
    """``late_name``: the adapter that may be loaded from ``--lora-dir``, by one client at a time."""

    url: str
    rng: random.Random
    cases: Sequence[Case]
    cold: Cold
    tally: Tally
    n_slots: int
    late_name: str
    late_lock: threading.Lock

    def run(self, until: float) -> None:
        """Until that ``time.monotonic()``."""
        actions = self._actions()
        while time.monotonic() < until:
            [action] = self.rng.choices(list(actions), list(actions.values()))
            name = action.__name__.strip("_").replace("_", " ")
            try:
                action()
                self.tally.count(name)
            except Exception as error:
                self.tally.error(f"{name}: {type(error).__name__}: {error}")

    def _actions(self) -> dict[Callable[[], None], float]:
        return {
            self._compared: 74,
            self._abandoned: 8,
            self._with_moved_state: 4,
            self._sampled: 4,
            self._slot_action: 4,
            self._refused: 3,
            self._operations: 2,
            self._default_scales: 1,
            self._late_adapter: 0.5,
        }

    # ------------------------------------------------------------------ answers that are known

    def _compared(self) -> None:
        number = self._any_case()
        self._compare(number, self._fields())

    def _any_case(self, is_late: bool = False) -> int:
        numbers = [i for i, case in enumerate(self.cases) if (case.adapters == "late") is is_late]
        return self.rng.choice(numbers)

    def _fields(self) -> dict[str, Any]:
        rng, fields = self.rng, {}
        if rng.random() < 0.5:
            fields["stream"] = True
        if rng.random() < 0.1:
            fields["cache_prompt"] = False
        if rng.random() < 0.15:
            fields["id_slot"] = rng.randrange(self.n_slots)
        return fields

    def _compare(self, number: int, fields: dict[str, Any]) -> None:
        case, rng = self.cases[number], self.rng
        name, dialect = rng.choice([item for item in DIALECTS.items() if item[1].can(case)])
        if dialect is NATIVE and rng.random() < 0.4:
            fields = fields | {"n_probs": N_PROBS}
        if dialect.n_field and "id_slot" not in fields and rng.random() < 0.1:
            fields = fields | {dialect.n_field: rng.choice((2, 3))}
        answers = asked(self.url, dialect, dialect.body(request(case, **fields)))
        if len(answers) != fields.get(dialect.n_field, 1):
            raise ValueError(f"{len(answers)} answers to {fields}")
        for answer in answers:
            what = f"case {number}, {name}, {fields}"
            if found := self.cold.compare(number, case, "stream" in fields, answer, what):
                self.tally.difference(found)
        self.tally.count(f"answers of {name}", len(answers))
        self.tally.count("answers compared", len(answers))

    def _late_adapter(self) -> None:
        """Loads an adapter, uses it, unloads it; its id is another one each time."""
        if not self.late_lock.acquire(blocking=False):
            return
        try:
            id = ask(self.url, "/lora-adapters/load", {"name": self.late_name})["id"]
            try:
                for _ in range(3):
                    self._compare(self._any_case(is_late=True), {"lora": [{"id": id, "scale": 1.0}]})
            finally:
                ask(self.url, "/lora-adapters/unload", {"id": id})
        finally:
            self.late_lock.release()

    # ------------------------------------------------------------------ what others must not feel

    def _abandoned(self) -> None:
        case = self.cases[self._any_case()]
        dialect = self.rng.choice([each for each in DIALECTS.values() if each.can(case)])
        body = request(case, stream=self.rng.random() < 0.7, ignore_eos=True)
        body["max_tokens" if case.is_chat else "n_predict"] = LONGEST_ANSWER
        if abandon(self.url, dialect.path, dialect.body(body), self.rng.choice((0.001, 0.02, 0.1, 0.4, 1.0))):
            self.tally.count("abandoned before the end")

    def _with_moved_state(self) -> None:
        """State from other positions, which only this request may have; its answer is nobody's cold one."""
        case = self.cases[self._any_case()]
        text = case.body.get("prompt") or words(self.rng, 300)
        cut = self.rng.randrange(1, 40)
        start = self.rng.randrange(max(1, len(text) - cut))
        prompt = text[:start] + text[start + cut :] or "a"
        body = request(case, prompt=prompt, n_cache_reuse=8, n_predict=8)
        body = {name: value for name, value in body.items() if name not in ("messages", "max_tokens")}
        body.pop("response_format", None)
        asked(self.url, NATIVE, NATIVE.body(body))

    def _sampled(self) -> None:
        kinds: list[dict[str, Any]] = [
            {"temperature": 1.0, "seed": self.rng.randrange(10**6)},
            {"temperature": 0.7, "mirostat": 2},
            {"temperature": 1.5, "xtc_probability": 0.5, "min_p": 0.02},
            {"temperature": 0.8, "typical_p": 0.9, "top_n_sigma": 2.0, "dynatemp_range": 0.3},
        ]
        case = self.cases[self._any_case()]
        dialect = self.rng.choice([each for each in DIALECTS.values() if each.can(case)])
        body = request(case, **self.rng.choice(kinds), stream=self.rng.random() < 0.5)
        asked(self.url, dialect, dialect.body(body))

    def _slot_action(self) -> None:
        action, slot = self.rng.choice(("save", "restore", "erase")), self.rng.randrange(self.n_slots)
        body = {} if action == "erase" else {"filename": self.rng.choice(SLOT_FILES)}
        ask(self.url, f"/slots/{slot}?action={action}", body)
        self.tally.count(f"slot {action}")

    def _default_scales(self) -> None:
        ask(
            self.url, "/lora-adapters", [{"id": self.rng.randrange(2), "scale": self.rng.choice((0, 0.7, 1))}]
        )

    # ------------------------------------------------------------------ the rest of the server

    def _refused(self) -> None:
        path, body, status, text = self.rng.choice(
            (
                ("/v1/embeddings", {"input": "a"}, 501, EMBEDDINGS_ERROR),
                ("/embedding", {"content": "a"}, 501, EMBEDDINGS_ERROR),
                ("/completion", {"prompt": "x y" * 4000}, 400, "exceeds the available context size"),
                ("/completion", {"prompt": "a", "grammar": "root ::= b"}, 400, "grammar"),
                ("/completion", {"prompt": "a", "n_probs": 20000}, 400, "n_probs"),
                ("/v1/chat/completions", {"messages": 5}, 400, "messages"),
                ("/v1/chat/completions", {"messages": [], "n": 99}, 400, ""),
                ("/lora-adapters/load", {"name": "nobody"}, 400, "there is no adapter"),
                ("/slots/one?action=erase", {}, 400, "Invalid slot ID"),
                ("/nowhere", {}, 404, "File Not Found"),
            )
        )
        try:
            answer = ask(self.url, path, body)
        except Refused as refusal:
            if refusal.status == status and text in refusal.text and '"error"' in refusal.text:
                return
            raise
        raise ValueError(f"{path} {body} was not refused but answered {answer}")

    def _operations(self) -> None:
        text = words(self.rng, 50)
        tokens = ask(self.url, "/tokenize", {"content": text})["tokens"]
        if ask(self.url, "/detokenize", {"tokens": tokens})["content"] != text:
            raise ValueError(f"{text!r} is not what its tokens are")
        for path in ("/health", "/props", "/slots", "/v1/models", "/lora-adapters"):
            ask(self.url, path)
