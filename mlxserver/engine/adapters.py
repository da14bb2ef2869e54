"""Loads and forgets adapters between steps, on the engine thread."""

from __future__ import annotations

import logging
from collections.abc import Collection

from mlxserver.engine.mailbox import AdapterInfo
from mlxserver.models.lora.load import load_adapter
from mlxserver.models.lora.loaded import LoadedAdapters
from mlxserver.models.model import Model

log = logging.getLogger("mlxserver.srv")


class AdapterActions:
    """``loaded`` are the adapters beside the model's weights, each once however often it was asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.loaded = LoadedAdapters(model.module)
        self._present: set[str] = set()
        self._leaving: set[str] = set()

    def load(self, path: str) -> AdapterInfo:
        """Raises ModelError and changes nothing where the file is none, is damaged or does not fit."""
        adapter = load_adapter(path, self._model)
        if adapter.digest not in self._present:
            self.loaded.add(adapter)
            self._present.add(adapter.digest)
        self._leaving.discard(adapter.digest)
        for note in adapter.notes:
            log.warning("%s: %s", path, note)
        log.info("loaded the adapter '%s': %d matrices", path, 2 * len(adapter.parts))
        invocation = adapter.invocation
        return AdapterInfo(path, adapter.digest, adapter.task_name, adapter.prompt_prefix, invocation)

    def unload(self, digest: str) -> None:
        """Forget the weights with the next ``tidy`` that finds nobody using them."""
        if digest in self._present:
            self._leaving.add(digest)

    def tidy(self, in_use: Collection[str]) -> None:
        """Forget what is to be forgotten and not in use."""
        for digest in [digest for digest in self._leaving if digest not in in_use]:
            self._leaving.discard(digest)
            self._present.discard(digest)
            self.loaded.remove(digest)

    @property
    def is_tidy(self) -> bool:
        return not self._leaving
