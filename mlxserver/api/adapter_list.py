"""The adapters that requests may name, by llama-server's ids, and the scales they have by default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlxserver.engine.mailbox import AdapterInfo
from mlxserver.kv.identity import Adapters

MANY = "Cannot run multiple aLoRAs in a single request"


@dataclass(slots=True)
class ListedAdapter:
    """``scale`` is that of requests without a ``lora`` field."""

    id: int
    info: AdapterInfo
    scale: float


@dataclass(frozen=True, slots=True)
class ChosenAdapters:
    """What evaluates a prompt: ``throughout``, or ``invoked`` from the token ``invoked_at`` on."""

    throughout: Adapters = ()
    invoked: Adapters = ()
    invoked_at: int = 0


class AdapterList:
    """An id is never given twice, so that no client ever means another adapter by it."""

    def __init__(self, infos: Sequence[AdapterInfo] = (), scales: Sequence[float] = ()) -> None:
        self._listed = [
            ListedAdapter(id, info, scale) for id, (info, scale) in enumerate(zip(infos, scales, strict=True))
        ]
        self._next_id = len(self._listed)

    def __iter__(self) -> Iterator[ListedAdapter]:
        return iter(self._listed)

    def add(self, info: AdapterInfo, scale: float) -> ListedAdapter:
        listed = ListedAdapter(self._next_id, info, scale)
        self._next_id += 1
        self._listed.append(listed)
        return listed

    def remove(self, id: int) -> ListedAdapter | None:
        """None where there is no such adapter."""
        found = next((listed for listed in self._listed if listed.id == id), None)
        if found is not None:
            self._listed.remove(found)
        return found

    def has(self, digest: str) -> bool:
        return any(listed.info.digest == digest for listed in self._listed)

    def ids(self) -> dict[str, int]:
        """By digest; the first where an adapter is listed twice."""
        return {listed.info.digest: listed.id for listed in reversed(self._listed)}

    def set_scales(self, scales: Mapping[int, float]) -> None:
        """The defaults of later requests; adapters that are not named get 0, unknown ids are ignored."""
        for listed in self._listed:
            listed.scale = scales.get(listed.id, 0.0)

    def throughout(self) -> Adapters:
        """What evaluates whole prompts by default. Raises ValueError where an invocation would begin it."""
        chosen = [listed for listed in self._listed if listed.scale != 0.0]
        if chosen and all(listed.info.invocation for listed in chosen):
            raise ValueError("an adapter with an invocation (aLoRA) cannot be used for embeddings")
        return tuple(sorted((listed.info.digest, listed.scale) for listed in chosen))

    def choose(self, asked: Mapping[int, float], tokens: Sequence[int]) -> ChosenAdapters:
        """What a prompt is evaluated with; where nothing is ``asked`` for, the default scales hold.

        Raises ValueError for several adapters with invocations.
        """
        scales = asked or {listed.id: listed.scale for listed in self._listed}
        active = [
            (listed.info, scale) for listed in self._listed if (scale := scales.get(listed.id, 0.0)) != 0.0
        ]
        adapters = tuple(sorted((info.digest, scale) for info, scale in active))
        if not active or not all(info.invocation for info, _ in active):
            return ChosenAdapters(throughout=adapters)
        if sum(scale > 0 for _, scale in active) != 1:
            raise ValueError(MANY)
        (invocation,) = (info.invocation for info, scale in active if scale > 0)
        at = last_occurrence(invocation, tokens)
        # the token before the invocation is evaluated with the adapter too, as in llama-server
        return ChosenAdapters(invoked=adapters, invoked_at=max(0, at - 1)) if at >= 0 else ChosenAdapters()


def last_occurrence(wanted: Sequence[int], tokens: Sequence[int]) -> int:
    """Where ``wanted`` begins for the last time; -1 where it is nowhere."""
    n, sought = len(wanted), tuple(wanted)
    starts = range(len(tokens) - n, -1, -1)
    return next((start for start in starts if tuple(tokens[start : start + n]) == sought), -1)
