"""Runs the HTTP server from before the model is loaded until a signal or a failure ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from mlxserver.api.adapter_list import AdapterList
from mlxserver.api.app import make_app
from mlxserver.api.state import Ready, ServerState
from mlxserver.chat.errors import TemplateError
from mlxserver.chat.template import ChatTemplate, Vocabulary, make_template
from mlxserver.connection import MAX_HEAD, Bounds, connections_with
from mlxserver.engine_start import StartedEngine, start_engine
from mlxserver.models.errors import ModelError
from mlxserver.options.vertex import read_vertex_ai
from mlxserver.telemetry.log import srv
from mlxserver.watchdog import EngineStuck, Watch, Watchdog

if TYPE_CHECKING:
    from mlxserver.models.model import Model

log = srv("llama_server")

DRAIN_SECONDS = 5
"""How long answers under way may take once the server stops."""
LAST_WORDS_SECONDS = 0.5
"""How long those that then have to end may take to say so."""
NEWS_SECONDS = 1.0
"""How long health checks are still answered once the engine cannot go on."""
FILES, MOST_FILES = 8192, 65536
"""Open files that are asked for, and counted on at most."""
OTHER_FILES = 128
"""Open files that are no connections."""
LEAST_CONNECTIONS = 32
MLX_LIBRARY = "libmlx"
"""What MLX's package alone is without."""


class Server(uvicorn.Server):
    """Stops gracefully at the first signal and at once, with exit code 1, at the second."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_answers())
        if self._state.ready is not None:
            self._state.ready.engine.blocks.end()
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_answers(self) -> None:
        await asyncio.sleep(DRAIN_SECONDS)
        if self._state.ready is not None:
            self._state.ready.engine.end("unavailable_error", "The server is shutting down")
        await asyncio.sleep(LAST_WORDS_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            sys.stderr.write("Received second interrupt, terminating immediately.\n")
            os._exit(1)
        self.should_exit = True


def serve(options: Any) -> int:
    """The exit code of the process."""
    state, port = ServerState(options), options.port
    try:
        vertex = read_vertex_ai(os.environ)
        config = uvicorn_config(make_app(state, vertex), options)
        _read_tls(config)
        port = vertex.port if vertex else port
        listener = bind(options.host, port, options.reuse_port)
    except (NotADirectoryError, ValueError) as error:
        log.error("%s", error)
    except OSError as error:
        log.error("couldn't bind HTTP server socket, hostname: %s, port: %d", options.host, port)
        log.error("%s", error)
    else:
        warn_of_open_origins(options)
        warn_of_folders(options)
        server = Server(config, state)
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, server.handle_exit)
        code = asyncio.run(_run(server, listener, state))
        _leave(code)
        return code
    log.error("exiting due to HTTP server error")
    return 1


def _read_tls(config: uvicorn.Config) -> None:
    """Raises ``ValueError`` for a key and certificate that cannot be used."""
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        files = f"{config.ssl_keyfile}, {config.ssl_certfile}"
        raise ValueError(f"cannot use the TLS key and certificate ({files}): {error}") from None


def _leave(code: int) -> None:
    """End the process at once, without what the interpreter does at its end.

    A thread that loads or computes meanwhile would abort it, and so would one that has ended just now:
    MLX's destructors of a thread wait for the interpreter after Python has seen it end.
    """
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def bind(host: str, port: int, reuse_port: bool) -> socket.socket:
    """A bound socket; a host that ends in ``.sock`` is the path of a Unix one. Raises ``OSError``."""
    if host.endswith(".sock"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(host)
        return listener
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def uvicorn_config(app: Any, options: Any) -> uvicorn.Config:
    is_secure = bool(options.ssl_key_file and options.ssl_cert_file)
    return uvicorn.Config(
        app,
        lifespan="off",
        interface="asgi3",
        http=connections_with(bounds_of(options)),
        h11_max_incomplete_event_size=MAX_HEAD,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        headers=[("Server", "llama.cpp")],
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2 * DRAIN_SECONDS,
        ssl_keyfile=options.ssl_key_file if is_secure else None,
        ssl_certfile=options.ssl_cert_file if is_secure else None,
    )


def bounds_of(options: Any) -> Bounds:
    """By default as many connections as the system lets the process open, but for what else it opens."""
    most = options.max_connections or max(LEAST_CONNECTIONS, _raised_file_limit() - OTHER_FILES)
    return Bounds(most, options.timeout if options.timeout > 0 else None)


def _raised_file_limit() -> int:
    """How many files may be open; a low limit is raised as far as that takes no rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else min(soft, MOST_FILES)


def address_of(listener: socket.socket, options: Any) -> str:
    """What the log calls the listening address."""
    if listener.family == socket.AF_UNIX:
        return f"unix://{options.host}"
    scheme = "https" if options.ssl_key_file and options.ssl_cert_file else "http"
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}"


def warn_of_open_origins(options: Any) -> None:
    if options.cors_origins == "*" and not options.api_key:
        log.warning("CORS allows every origin ('*') and no API key is set")
        log.warning("a web page that you visit could use this server; --api-key or --cors-origins prevent it")


def warn_of_folders(options: Any) -> None:
    if options.slot_save_path and not os.access(options.slot_save_path, os.W_OK | os.X_OK):
        log.warning("--slot-save-path: %s is read-only, slots cannot be saved", options.slot_save_path)
    if options.lora_dir and not os.access(options.lora_dir, os.R_OK | os.X_OK):
        log.warning("--lora-dir: %s cannot be read, no adapter can be loaded", options.lora_dir)


async def _run(server: Server, listener: socket.socket, state: ServerState) -> int:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    starting = asyncio.create_task(start_engine(state.options))
    started: StartedEngine | None = None
    watchdog: Watchdog | None = None
    try:
        await asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            started = starting.result()
            state.ready = Ready(
                started.model,
                started.client,
                template_of(started.model, state.options),
                adapters_of(started, state.options),
            )
            watchdog = _watchdog(started, state.options)
            log.info("model loaded")
            log.info("listening on %s", address_of(listener, state.options))
            await asyncio.wait((serving, started.failed), return_when=asyncio.FIRST_COMPLETED)
            if started.failed.done():
                return await _give_up(state, started)
        await serving
        return 0
    except (ModelError, TemplateError) as error:
        log.error("%s", error)
    except Exception as error:
        if MLX_LIBRARY in str(error):
            log.error("%s (on Linux MLX needs its extra: pip install '.[cpu]')", error)
        else:
            log.error("%s", error, exc_info=error)
    finally:
        starting.cancel()
        if watchdog is not None:
            watchdog.stop()
        await _clean_up(server, serving, started)
        if listener.family == socket.AF_UNIX:
            Path(state.options.host).unlink(missing_ok=True)
    log.error("exiting due to model loading error")
    return 1


def _watchdog(started: StartedEngine, options: Any) -> Watchdog | None:
    """Looking already; None where it is not wanted."""
    if options.watchdog <= 0:
        return None
    loop = asyncio.get_running_loop()

    def on_stuck(stuck: EngineStuck) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            loop.call_soon_threadsafe(started.fail, stuck)

    watchdog = Watchdog(Watch(started.engine.pulse, options.watchdog), on_stuck)
    watchdog.start()
    return watchdog


async def _give_up(state: ServerState, started: StartedEngine) -> int:
    """Nothing can be answered any more; whoever started the process is to start it again."""
    log.error("the engine cannot go on: %s", started.failed.result())
    state.failed = True
    started.client.end("server_error", "The engine has failed")
    await asyncio.sleep(NEWS_SECONDS)
    return 1


async def _clean_up(server: Server, serving: asyncio.Task[None], started: StartedEngine | None) -> None:
    log.info("cleaning up before exit...")
    server.should_exit = True
    await serving
    if started is not None and not started.is_stuck:
        started.engine.close(timeout=DRAIN_SECONDS)


def template_of(model: Model, options: Any) -> ChatTemplate:
    """The template of ``--chat-template``, else the model's. Raises ``TemplateError``."""
    tokenizer, info = model.tokenizer, model.info
    vocabulary = Vocabulary(info.bos_text, info.eos_text, tokenizer.add_bos, tokenizer.add_eos)
    return make_template(
        options.chat_template, options.jinja, info.chat_template, info.chat_template_tool_use, vocabulary
    )


def adapters_of(started: StartedEngine, options: Any) -> AdapterList:
    """The adapters of the options, with the scales that requests use unless they name others."""
    scales = [0.0 if options.lora_init_without_apply else scale for _, scale in options.lora]
    return AdapterList(started.adapters, scales)
