"""From a request's body to its response: tasks for the engine, a stream or one answer, and their end.

Every text or chat API comes through here with a dialect of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.adapter_list import ChosenAdapters
from mlxserver.api.aside import LARGE, aside, aside_if
from mlxserver.api.completion_progress import RunningCompletion
from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.completion_schema import read_completion_request
from mlxserver.api.disconnect import unless_disconnected
from mlxserver.api.errors import ApiError, invalid_request, server_error
from mlxserver.api.generation import Dialect, Result, Update
from mlxserver.api.generation_settings import generation_settings, short_settings
from mlxserver.api.json_body import type_name
from mlxserver.api.json_response import json_response
from mlxserver.api.prompts import check_tokens, tokenize_prompts
from mlxserver.api.queue_room import check_room
from mlxserver.api.sse import event_stream
from mlxserver.api.sse_frame import frame, text_frame
from mlxserver.api.state import ServerState
from mlxserver.api.tenant import tenant_of
from mlxserver.engine.task import Event, Task
from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity
from mlxserver.sampling.grammar.compiler import compiler_of
from mlxserver.sampling.params import RANDOM_SEED, SamplerError, SamplingParams, validate

if TYPE_CHECKING:
    from mlxserver.engine.client import Run

log = logging.getLogger("mlxserver.srv")


MANY = 2000
"""Candidates of an answer whose JSON takes more than some milliseconds."""

Arrivals = list[tuple[RunningCompletion, list[Event]]]


class Completions:
    """The completions of one request, running."""

    def __init__(self, parts: list[RunningCompletion]) -> None:
        self._parts = parts

    async def updates(self) -> AsyncGenerator[list[Update]]:
        """What happened since the last list. Raises ``ApiError`` when one fails; leaving it ends them all."""
        try:
            async with aclosing(self._arrivals()) as steps:
                async for arrivals in steps:
                    updates, error = _take(arrivals)
                    if updates:
                        yield updates
                    if error is not None:
                        raise error
        finally:
            self.cancel()

    async def results(self) -> list[Result]:
        """All results, by index."""
        async with aclosing(self.updates()) as batches:
            found = [item async for batch in batches for item in batch if isinstance(item, Result)]
        return sorted(found, key=lambda result: result.index)

    def end_reasoning(self) -> None:
        """Whatever still reasons goes over to its answer."""
        for part in self._parts:
            part.run.end_reasoning()

    def cancel(self) -> None:
        """Frees the slots of whatever still runs."""
        for part in self._parts:
            if not part.has_ended:
                part.run.cancel()

    async def _arrivals(self) -> AsyncGenerator[Arrivals]:
        if len(self._parts) == 1:
            part = self._parts[0]
            while not part.has_ended:
                yield [(part, await part.run.events())]
            return
        waiting = {_wait_for(part): part for part in self._parts}
        try:
            while waiting:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                arrivals = [(waiting.pop(task), task.result()) for task in list(waiting) if task.done()]
                yield arrivals
                waiting |= {_wait_for(part): part for part, _ in arrivals if not part.has_ended}
        finally:
            for task in waiting:
                task.cancel()


def _wait_for(part: RunningCompletion) -> asyncio.Task[list[Event]]:
    return asyncio.create_task(part.run.events())


def _take(arrivals: Arrivals) -> tuple[list[Update], ApiError | None]:
    updates: list[Update] = []
    try:
        for part, events in arrivals:
            for event in events:
                updates += part.take(event)
    except ApiError as error:
        return updates, error
    return updates, None


async def respond(
    request: Request,
    state: ServerState,
    body: Any,
    make_dialect: Callable[[CompletionRequest], Dialect],
    started: Callable[[Completions], None] = lambda completions: None,
) -> Response:
    """Runs the completions that ``body`` (native fields) asks for and answers in the dialect's form.

    Raises ``ApiError`` for whatever fails before a stream's first event. A client that goes away ends them.
    """
    completion, prompts = await aside(request, lambda: read_body(body, state))
    await check_grammar(completion, state)
    dialect = make_dialect(completion)
    completions = start(completion, prompts, state, _identity(request, state))
    started(completions)
    if completion.stream:
        return await _stream(request, completions, dialect, completion.sse_ping_interval)
    results = await unless_disconnected(request, completions.results())
    if results is None:
        return Response()
    n_candidates = sum(len(entry.top) for result in results for entry in result.probs)
    is_large = n_candidates > MANY or len(await request.body()) > LARGE
    return await aside_if(is_large, lambda: json_response(dialect.answer(results)))


async def _stream(
    request: Request, completions: Completions, dialect: Dialect, ping_interval: int
) -> Response:
    updates = completions.updates()
    first = await unless_disconnected(request, anext(updates))
    if first is None:
        return Response()
    return event_stream(request, _events(first, updates, dialect), ping_interval)


async def _events(
    first: list[Update], updates: AsyncGenerator[list[Update]], dialect: Dialect
) -> AsyncGenerator[bytes]:
    """The events of one wake-up together, as they are sent; an error ends them with an event of its own."""
    try:
        async with aclosing(updates):
            if data := _frames(first, dialect):
                yield data
            async for batch in updates:
                if data := _frames(batch, dialect):
                    yield data
    except ApiError as error:
        yield frame(dialect.error(error))
        return
    except Exception as error:
        log.exception("a stream failed")
        yield frame(dialect.error(server_error(str(error))))
        return
    if dialect.done is not None:
        yield text_frame(dialect.done)


def _frames(batch: list[Update], dialect: Dialect) -> bytes:
    return b"".join([frame(event) for update in batch for event in dialect.events(update)])


def read_body(body: Any, state: ServerState) -> tuple[CompletionRequest, list[tuple[int, ...]]]:
    """The request and its prompts' token ids. Raises ``ApiError``."""
    if not isinstance(body, dict):
        raise invalid_request(f"[json.exception.type_error.304] cannot use at() with {type_name(body)}")
    if "prompt" not in body:
        raise invalid_request("[json.exception.out_of_range.403] key 'prompt' not found")
    tokenizer = state.model.tokenizer
    try:
        prompts = tokenize_prompts(body["prompt"], tokenizer)
        request = read_completion_request(body, state.defaults, tokenizer, state.engine.n_slots)
        for prompt in prompts:
            check_tokens(prompt, tokenizer)
        validate(request.sampling)
    except SamplerError as error:
        raise invalid_request(f"Failed to initialize samplers: {error}") from None
    except ValueError as error:
        raise invalid_request(str(error)) from None
    return request, prompts


async def check_grammar(completion: CompletionRequest, state: ServerState) -> None:
    """Compiles the request's grammar, beside the event loop. Raises ``ApiError`` for one of no use."""
    grammar = completion.sampling.grammar
    if grammar is None:
        return
    try:
        await asyncio.to_thread(compiler_of(state.model.tokenizer).check, grammar)
    except SamplerError as error:
        raise invalid_request(f"Failed to initialize samplers: {error}") from None


def _identity(request: Request, state: ServerState) -> CacheIdentity:
    """Whose stored prompts the request may use: with ``--cache-tenants`` those of its API key."""
    return CacheIdentity(tenant=tenant_of(request) if state.options.cache_tenants else "")


def start(
    request: CompletionRequest,
    prompts: list[tuple[int, ...]],
    state: ServerState,
    identity: CacheIdentity = BASE_IDENTITY,
) -> Completions:
    """Hands one task a prompt to the engine. Raises ``ApiError`` for adapters that no prompt can have."""
    parts: list[RunningCompletion] = []
    requests = _requests_of_one_prompt(request)
    try:
        chosen = [state.adapters.choose(dict(request.lora), prompt) for prompt in prompts]
    except ValueError as error:
        raise invalid_request(str(error)) from None
    check_room(len(prompts) * len(requests), state)
    for prompt, adapters in zip(prompts, chosen, strict=True):
        run = state.engine.submit(_task(requests, prompt, state, identity, adapters))
        for own, run_of_own in zip(requests, _family(run), strict=True):
            parts.append(_part(len(parts), run_of_own, own, prompt, state, is_child=run_of_own is not run))
    return Completions(parts)


def _requests_of_one_prompt(request: CompletionRequest) -> list[CompletionRequest]:
    """Further completions of a prompt count their seed up, unless seeds are drawn anyway."""
    sampling = request.sampling
    if sampling.seed == RANDOM_SEED:
        return [request] * request.n_cmpl
    seeds = [(sampling.seed + number) & RANDOM_SEED for number in range(request.n_cmpl)]
    return [replace(request, sampling=replace(sampling, seed=seed)) for seed in seeds]


def _task(
    requests: list[CompletionRequest],
    prompt: tuple[int, ...],
    state: ServerState,
    identity: CacheIdentity,
    adapters: ChosenAdapters,
) -> Task:
    first, engine = requests[0], state.engine
    return Task(
        id=engine.new_task_id(),
        tokens=prompt,
        sampling=_within(first.sampling, engine.n_ctx),
        n_predict=_n_predict(first.n_predict, state.options.n_predict),
        id_slot=first.id_slot,
        cache_prompt=first.cache_prompt,
        n_keep=first.n_keep,
        n_discard=first.n_discard,
        n_cache_reuse=first.n_cache_reuse,
        return_progress=first.return_progress and first.stream,
        children=tuple(
            (engine.new_task_id(), _within(child.sampling, engine.n_ctx)) for child in requests[1:]
        ),
        identity=replace(identity, adapters=adapters.throughout),
        invoked=adapters.invoked,
        invoked_at=adapters.invoked_at,
        settings=generation_settings(first) if state.shows_slot_texts else short_settings(first),
    )


def _within(sampling: SamplingParams, n_ctx: int) -> SamplingParams:
    """Windows over the last tokens take memory by their size, and no more than ``n_ctx`` tokens are there."""
    if max(sampling.repeat_last_n, sampling.dry_penalty_last_n) <= n_ctx:
        return sampling
    sizes = {name: min(getattr(sampling, name), n_ctx) for name in ("repeat_last_n", "dry_penalty_last_n")}
    return replace(sampling, **sizes)


def _n_predict(asked: int, default: int) -> int:
    """As llama-server counts: -1 is without bound, any other negative number leaves room for one token."""
    bound = asked if asked != -1 else default
    return bound if bound == -1 else max(bound, 0)


def _family(run: Run) -> tuple[Run, ...]:
    return (run, *run.children)


def _part(
    index: int,
    run: Run,
    request: CompletionRequest,
    prompt: tuple[int, ...],
    state: ServerState,
    is_child: bool,
) -> RunningCompletion:
    tokenizer, special = state.model.tokenizer, state.options.special
    return RunningCompletion(index, run, request, prompt, tokenizer, special, is_child)
