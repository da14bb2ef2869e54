"""Loads and forgets adapters between steps, on the engine thread."""

from __future__ import annotations

import logging
from collections.abc import Collection

import mlx.core as mx

from mlxserver.engine.mailbox import AdapterInfo
from mlxserver.kv.identity import Adapters
from mlxserver.models.errors import ModelError
from mlxserver.models.hidden_states import hidden_states
from mlxserver.models.lora import Adapter, LoadedAdapters, load_adapter
from mlxserver.models.model import Model

log = logging.getLogger("mlxserver.srv")

TOLERANCE = 0.05
"""Of the largest value: far above what 16-bit floats do to a sum, far below a wrong row's adapter."""


class AdapterActions:
    """``loaded`` are the adapters of the model; an adapter that does not work with it is never among them."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.loaded = LoadedAdapters(model.module)
        self._leaving: set[str] = set()

    def load(self, path: str) -> AdapterInfo:
        """Raises ModelError and changes nothing where the file is none, is damaged or does not fit."""
        adapter = load_adapter(path, self._model)
        if adapter.digest in self._leaving:
            self._leaving.discard(adapter.digest)
        elif adapter.digest not in self.loaded:
            self.loaded.add(adapter)
            try:
                self._try_out(adapter)
            except BaseException:
                self.loaded.remove(adapter.digest)
                raise
        invocation = adapter.invocation
        return AdapterInfo(path, adapter.digest, adapter.task_name, adapter.prompt_prefix, invocation)

    def unload(self, digest: str) -> None:
        """Forget the weights with the next ``tidy`` that finds nobody using them."""
        self._leaving.add(digest)

    def tidy(self, in_use: Collection[str]) -> None:
        """Forget what is to be forgotten and not in use."""
        for digest in [digest for digest in self._leaving if digest not in in_use]:
            self._leaving.discard(digest)
            self.loaded.remove(digest)

    @property
    def is_tidy(self) -> bool:
        return not self._leaving

    def _try_out(self, adapter: Adapter) -> None:
        """Raises ModelError where the model does not give a row of a batch its own adapter."""
        one: Adapters = ((adapter.digest, 1.0),)
        try:
            alone = [self._evaluate([()])[0], self._evaluate([one])[0]]
            together = self._evaluate([(), one])
            difference = mx.abs(together - mx.stack(alone)).max()
            agrees = (difference <= TOLERANCE * mx.abs(together).max()).item()
        except (ValueError, TypeError, RuntimeError, IndexError, KeyError, AttributeError) as error:
            raise ModelError(f"{adapter.path}: the model cannot be evaluated with it ({error})") from error
        finally:
            self.loaded.use([()])
        if not agrees:
            raise ModelError(f"{adapter.path}: rows of a batch do not keep their own adapters in this model")

    def _evaluate(self, rows: list[Adapters]) -> mx.array:
        """(rows, width) of what the model makes of one token."""
        self.loaded.use(rows)
        tokens = mx.zeros((len(rows), 1), dtype=mx.int32)
        if self._model.is_encoder:
            hidden: mx.array = hidden_states(self._model)(tokens, mx.ones((len(rows),), dtype=mx.int32))
            return hidden[:, 0].astype(mx.float32)
        logits: mx.array = self._model.module(tokens)
        return logits[:, -1].astype(mx.float32)
