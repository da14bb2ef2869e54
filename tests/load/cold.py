"""Cold answers: each case alone on a server of the same build that keeps nothing."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from tests.load.cases import SETS, Case
from tests.load.dialects import CHAT, NATIVE, Answer, asked
from tests.load.http import ask

N_PROBS = 2
MAX_DELTA = 1e-3
"""Of a log-probability, in nats."""


def request(case: Case, **fields: Any) -> dict[str, Any]:
    """``lora`` is always told, so that the server's default scales do not matter."""
    wish = [{"id": id, "scale": scale} for id, scale in SETS[case.adapters]]
    return {**case.body, "lora": wish or [{"id": 0, "scale": 0.0}], **fields}


@dataclass(frozen=True)
class Difference:
    """Where an answer is not the cold one, and how far the cold run's best two tokens are apart there.

    ``gap`` in nats; None where no token of the cold answer could be blamed.
    """

    what: str
    got: str
    wanted: str
    gap: float | None = None


@dataclass
class Cold:
    """``url``: of the server that keeps nothing; one request at a time."""

    url: str
    known: dict[tuple[int, bool], Answer] = field(default_factory=dict)
    """By the case's place in the pool, and whether it is streamed: a stream lacks incomplete characters."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    largest_delta: float = 0.0
    """Of all log-probabilities compared, in nats."""

    def learn(self, cases: list[Case]) -> None:
        for number, case in enumerate(cases):
            dialect = CHAT if case.is_chat else NATIVE
            fields = {} if case.is_chat else {"n_probs": N_PROBS}
            for stream in (False, True):
                body = dialect.body(request(case, cache_prompt=False, stream=stream, **fields))
                [self.known[number, stream]] = asked(self.url, dialect, body)

    def compare(self, number: int, case: Case, stream: bool, got: Answer, what: str) -> Difference | None:
        wanted = self.known[number, stream]
        if got.text != wanted.text or (got.tokens is not None and got.tokens != wanted.tokens):
            return Difference(what, repr(got), repr(wanted), self._gap(case, wanted, got))
        if got.probs is None or wanted.probs is None:
            return None
        delta = _delta(got.probs, wanted.probs)
        self.largest_delta = max(self.largest_delta, delta)
        return Difference(what, repr(got), repr(wanted)) if delta > MAX_DELTA else None

    def _gap(self, case: Case, wanted: Answer, got: Answer) -> float | None:
        """Between the best two tokens of the cold run where the answers part."""
        with self.lock:
            prompt = case.body.get("prompt")
            if prompt is None:
                prompt = ask(self.url, "/apply-template", {"messages": case.body["messages"]})["prompt"]
            body = request(case, prompt=prompt, cache_prompt=False, n_probs=N_PROBS)
            body.pop("messages", None)
            body["n_predict"] = body.pop("max_tokens", None) or body["n_predict"]
            [run] = asked(self.url, NATIVE, NATIVE.body(body))
            if run.text != wanted.text or run.probs is None:
                return None
            for i in range(len(run.probs)):
                shown = ask(self.url, "/detokenize", {"tokens": list((run.tokens or ())[: i + 1])})["content"]
                if not got.text.startswith(shown):
                    return _gap_at(run.probs[i])
            return None


def _gap_at(candidates: list[tuple[int, float]]) -> float:
    best = sorted({id: value for id, value in candidates}.values(), reverse=True)
    return best[0] - best[1] if len(best) > 1 else float("inf")


def _delta(got: list[list[tuple[int, float]]], wanted: list[list[tuple[int, float]]]) -> float:
    """The largest difference of what both list; infinite where they list another number of positions."""
    if len(got) != len(wanted):
        return float("inf")
    worst = 0.0
    for here, there in zip(got, wanted, strict=True):
        known = dict(there)
        worst = max([worst, *(abs(value - known[id]) for id, value in here if id in known)])
    return worst
