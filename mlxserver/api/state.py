"""What every handler may read: one object per server."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from mlxserver.api.completion_defaults import default_request
from mlxserver.api.stream_replay import StreamRegistry
from mlxserver.options.environment import shows_slot_texts

if TYPE_CHECKING:
    from mlxserver.api.adapter_list import AdapterList
    from mlxserver.api.completion_request import CompletionRequest
    from mlxserver.api.running_chat import RunningChat
    from mlxserver.chat.template import ChatTemplate
    from mlxserver.engine.client import EngineClient
    from mlxserver.models.model import Model
    from mlxserver.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Ready:
    """What exists once the model is loaded. Of ``model`` only ``info`` and ``tokenizer`` are used here."""

    model: Model
    engine: EngineClient
    template: ChatTemplate
    adapters: AdapterList


@dataclass(slots=True)
class ServerState:
    """``options`` never changes; ``ready`` is set once. Handlers run only after that."""

    options: Any
    ready: Ready | None = None
    failed: bool = False
    """The engine cannot go on; the server is about to end."""
    streams: StreamRegistry = field(default_factory=StreamRegistry)
    chats: WeakValueDictionary[str, RunningChat] = field(default_factory=WeakValueDictionary)
    """Running chat completions by the id that their answers carry."""
    metrics: Metrics | None = None
    """Made when first asked for."""
    shows_slot_texts: bool = field(default_factory=lambda: shows_slot_texts(os.environ))
    """``/slots`` then shows all settings."""
    started_us: int = field(default_factory=lambda: time.monotonic_ns() // 1000)
    _defaults: CompletionRequest | None = None

    @property
    def is_ready(self) -> bool:
        return self.ready is not None

    @property
    def model(self) -> Model:
        return self._loaded.model

    @property
    def defaults(self) -> CompletionRequest:
        """The request whose every field is the server's default."""
        if self._defaults is None:
            self._defaults = default_request(self.options, self.model)
        return self._defaults

    @property
    def engine(self) -> EngineClient:
        return self._loaded.engine

    @property
    def template(self) -> ChatTemplate:
        return self._loaded.template

    @property
    def adapters(self) -> AdapterList:
        return self._loaded.adapters

    @property
    def _loaded(self) -> Ready:
        if self.ready is None:
            raise RuntimeError("the model is not loaded")
        return self.ready

    @property
    def aliases(self) -> list[str]:
        """The ``--alias`` names, sorted as llama-server keeps them; without any, the model's source."""
        return sorted(self.options.alias) or [self.model.info.path]

    @property
    def model_name(self) -> str:
        """What responses call the model."""
        return self.aliases[0]
