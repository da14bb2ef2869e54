"""Starts the engine thread, which loads the model, from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxserver.telemetry.log import srv
from mlxserver.watchdog import EngineStuck

if TYPE_CHECKING:
    from mlxserver.engine.client import EngineClient
    from mlxserver.engine.config import EngineConfig
    from mlxserver.engine.engine import Engine
    from mlxserver.engine.mailbox import AdapterInfo
    from mlxserver.models.model import Model

log = srv("load_model")


@dataclass(frozen=True, slots=True)
class StartedEngine:
    model: Model
    client: EngineClient
    engine: Engine
    adapters: list[AdapterInfo]
    """Those of the options, in their order."""
    failed: asyncio.Future[BaseException]
    """Done when the engine cannot go on."""

    def fail(self, error: BaseException) -> None:
        _settle(self.failed, error)

    @property
    def is_stuck(self) -> bool:
        """The engine's thread will not end."""
        return self.failed.done() and isinstance(self.failed.result(), EngineStuck)


async def start_engine(options: Any) -> StartedEngine:
    """Raises whatever loading the model raises."""
    await asyncio.to_thread(importlib.import_module, "mlxserver.engine.engine")
    from mlxserver.engine.client import EngineClient
    from mlxserver.engine.engine import Engine

    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[tuple[Model, EngineConfig, list[AdapterInfo]]] = loop.create_future()
    failed: asyncio.Future[BaseException] = loop.create_future()
    client = EngineClient(loop)

    def on_ready(model: Model, config: EngineConfig, adapters: list[AdapterInfo]) -> None:
        loop.call_soon_threadsafe(_settle, loaded, (model, config, adapters))

    def on_failed(error: BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            loop.call_soon_threadsafe(_fail, loaded, failed, error)

    engine = Engine(lambda: load(options), client.receive, on_ready, on_failed, client.receive_blocks)
    engine.start()
    model, config, adapters = await loaded
    client.attach(engine, config)
    return StartedEngine(model, client, engine, adapters, failed)


def load(options: Any) -> tuple[Model, EngineConfig]:
    """Runs in the engine thread."""
    from mlxserver.engine.config import EngineConfig
    from mlxserver.kv.slot_file import remove_leftovers
    from mlxserver.models.load import ModelSource, load_model, local_path
    from mlxserver.models.memory_limit import memory_limit, most_memory
    from mlxserver.models.rope_options import RopeOptions
    from mlxserver.models.weight_bytes import check_weights

    if options.slot_save_path:
        remove_leftovers(Path(options.slot_save_path))
    source = ModelSource(
        path=options.model or "",
        hf_repo=options.hf_repo or "",
        hf_file=options.hf_file or "",
        hf_token=options.hf_token or "",
        offline=options.offline,
        hf_cache=os.environ.get("LLAMA_CACHE", ""),
    )
    log.info("loading model '%s'", source.name)
    rope = RopeOptions.from_options(options)
    limit = memory_limit(options.memory_limit)
    if warning := check_weights(local_path(source), options.dtype, options.weights, limit, most_memory()):
        log.warning("%s", warning)
    model, notes = load_model(source, options.dtype, options.weights, options.override_kv, rope)
    for note in notes:
        log.info("%s", note)
    config = EngineConfig.from_options(
        options, model.info.n_ctx_train, model.info.pooling, has_logits=not model.is_encoder
    )
    return model, replace(config, memory_limit=limit.nbytes, memory_limit_is_given=limit.is_given)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(loaded: asyncio.Future[Any], failed: asyncio.Future[BaseException], error: BaseException) -> None:
    if loaded.done():
        _settle(failed, error)
    else:
        loaded.set_exception(error if isinstance(error, Exception) else RuntimeError(str(error)))
