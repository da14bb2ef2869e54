"""Loads and forgets adapters between steps, on the engine thread."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection

from mlxserver.engine.mailbox import AdapterInfo
from mlxserver.models.lora.load import load_adapter
from mlxserver.models.lora.loaded import LoadedAdapters
from mlxserver.models.model import Model

log = logging.getLogger("mlxserver.srv")


class AdapterActions:
    """``loaded`` are the adapters beside the model's weights, each once however often it was asked for.

    Who asked for one gives it back, so that one client's unloading never takes away what another's loading
    was answered with, in whichever order the two come.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.loaded = LoadedAdapters(model.module)
        self._asked: Counter[str] = Counter()
        """How often each adapter that is there was asked for and not given back."""

    def load(self, path: str) -> AdapterInfo:
        """Raises ModelError and changes nothing where the file is none, is damaged or does not fit."""
        adapter = load_adapter(path, self._model)
        self.loaded.add(adapter)
        self._asked[adapter.digest] += 1
        for note in adapter.notes:
            log.warning("%s: %s", path, note)
        log.info("loaded the adapter '%s': %d matrices", path, 2 * len(adapter.parts))
        invocation = adapter.invocation
        return AdapterInfo(path, adapter.digest, adapter.task_name, adapter.prompt_prefix, invocation)

    def unload(self, digest: str) -> None:
        """Give an adapter back: the ``tidy`` that finds that nobody has or uses it forgets its weights."""
        if self._asked[digest] > 0:
            self._asked[digest] -= 1

    def tidy(self, in_use: Collection[str]) -> None:
        """Forget what nobody has and nobody uses."""
        leaving = [digest for digest, n in self._asked.items() if n == 0 and digest not in in_use]
        for digest in leaving:
            del self._asked[digest]
            self.loaded.remove(digest)

    @property
    def is_tidy(self) -> bool:
        return all(self._asked.values())
