"""What is fuzzed: each target makes an input from a generator and gives it to the code.

A target raises ``Wrong`` where the answer is not one of those that bad input may get; any other error that
comes out of it is a bug too.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mlxserver.api.app import make_app
from mlxserver.chat.errors import TemplateError
from mlxserver.chat.jinja_env import TemplateEnvironment, compile_template, render
from mlxserver.kv.disk.entry import DiskError, header_of, name_of
from mlxserver.kv.slot_file import SlotFileError, read_slot_file, write_slot_file
from mlxserver.kv.state_file import StateFileError, packed, read_header, read_state
from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.reader import parse_part
from mlxserver.models.lora.adapter import AdapterError
from mlxserver.models.lora.load import load_adapter
from mlxserver.sampling.grammar.compiler import GrammarCompiler
from mlxserver.sampling.grammar.schema import SchemaError, schema_grammar
from mlxserver.sampling.params import Grammar, SamplerError
from tests.api.embedding_engine import EmbeddingEngine
from tests.api.fake_engine import EOS, FakeEngine
from tests.api.served import served_state
from tests.fuzz import seeds
from tests.fuzz.mutations import mutated, mutated_bytes, mutated_text
from tests.sampling.byte_tokens import ByteTokens

Target = Callable[[random.Random, Path], None]
"""Takes a generator, and a folder for its files."""


class Wrong(Exception):
    """An answer that bad input may not get."""


# ---------------------------------------------------------------------- requests


class _Client:
    """Speaks ASGI to the application, with what llama-server calls its own faults given back as the client's:
    so whatever is still a 500 is a bug."""

    def __init__(self) -> None:
        state = served_state("--strict-http", "--lora-dir", ".", engine=_engine())
        tokenizer: Any = state.model.tokenizer
        tokenizer.fim_pre, tokenizer.fim_suf, tokenizer.fim_mid = 260, 261, 262
        self._app = make_app(state)
        embedder: Any = EmbeddingEngine(lambda task: ([0.5] * 4,))
        argv = ("--strict-http", "--embeddings", "--pooling", "mean")
        self._embedding = make_app(served_state(*argv, engine=embedder))
        self._loop = asyncio.new_event_loop()

    def post(self, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> tuple[int, bytes]:
        app = self._embedding if "embed" in path else self._app
        return self._loop.run_until_complete(_ask(app, path, body, headers))


async def _ask(app: Any, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> tuple[int, bytes]:
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), *headers],
        "client": ("fuzz", 1),
    }
    pending = [{"type": "http.request", "body": body, "more_body": False}]
    status, parts = 0, []

    async def receive() -> Any:
        if pending:
            return pending.pop()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, b"".join(parts)


def _engine() -> FakeEngine:
    return FakeEngine([*b"ok", EOS], [*b"<think>a</think>\n\n{", EOS], [0xC3, 0xA9, 0xF0, 10, EOS])


@cache
def _client() -> _Client:
    return _Client()


def _requests(bodies: Mapping[str, Sequence[Any]], fields: dict[str, Any]) -> Target:
    names = [*fields]
    known = [(path, document) for path in bodies for document in bodies[path]]

    def target(rng: random.Random, folder: Path) -> None:
        path, document = rng.choice(known)
        changed = mutated(document, rng, names, fields)
        body = json.dumps(changed).encode()
        if rng.random() < 0.05:
            body = mutated_bytes(body, rng)
        status, answer = _client().post(path, body)
        if status not in ALLOWED or b'"code":500' in answer:
            raise Wrong(f"{status} {answer[:300]!r}\n{path} {body[:2000]!r}")
        answer.decode()

    return target


ALLOWED = (200, 204, 400, 404, 501)


# ---------------------------------------------------------------------- files


def _gguf(rng: random.Random, folder: Path) -> None:
    try:
        parse_part(mutated_bytes(rng.choice(seeds.gguf_files(folder)), rng), Path("fuzz.gguf"))
    except ModelError as error:
        _one_line(error)


def _lora(rng: random.Random, folder: Path) -> None:
    loaded, damaged, content = rng.choice(seeds.adapters(folder))
    try:
        if damaged.suffix == ".json" and rng.random() < 0.8:
            damaged.write_text(json.dumps(mutated(json.loads(content), rng, seeds.ADAPTER_KEYS)))
        else:
            damaged.write_bytes(mutated_bytes(content, rng))
        load_adapter(str(loaded), seeds.model())
    except AdapterError as error:
        _one_line(error)
    finally:
        damaged.write_bytes(content)


def _slot_file(rng: random.Random, folder: Path) -> None:
    path = folder / "slot"
    _write(path, rng, *seeds.slot_file(folder))
    try:
        found = read_slot_file(path, seeds.SPACE)
        write_slot_file(folder / "again", seeds.SPACE, found.tokens, found.identity, found.span, None)
    except SlotFileError as error:
        _one_line(error)
    except OverflowError:
        raise Wrong("a token beyond 64 bits") from None


def _block_file(rng: random.Random, folder: Path) -> None:
    path = folder / "block"
    _write(path, rng, *seeds.block_file())
    with path.open("rb", buffering=0) as file:
        try:
            header, _ = read_header(file)
            if not isinstance(header, dict):
                return
            name = name_of(header)
            header_of(name, seeds.SPACE, 1)
            read_state(file)
        except (StateFileError, DiskError) as error:
            _one_line(error)


def _write(path: Path, rng: random.Random, header: Any, tensors: Any) -> None:
    """Mostly a right checksum over a wrong header: what damage alone never is."""
    if rng.random() < 0.7:
        header = mutated(header, rng, [*header] if isinstance(header, dict) else ())
        if isinstance(header, dict) and rng.random() < 0.3 and tensors:
            tensors = dict(tensors)
            tensors.pop(rng.choice([*tensors]))
    content = b"".join(bytes(piece) for piece in packed(header, tensors))
    path.write_bytes(content if rng.random() < 0.7 else mutated_bytes(content, rng))


def _one_line(error: Exception) -> None:
    text = str(error)
    if not text or "\n" in text or len(text) > 2000:
        raise Wrong(f"no message of one line: {text[:500]!r}")


# ---------------------------------------------------------------------- grammars and templates


@cache
def _compiler() -> GrammarCompiler:
    return GrammarCompiler(ByteTokens())


def _gbnf(rng: random.Random, folder: Path) -> None:
    text = mutated_text(rng.choice(seeds.GRAMMARS), rng, seeds.GRAMMAR_PIECES)
    _compile(Grammar("lark" if text.startswith("%llguidance") else "gbnf", text))


def _schema(rng: random.Random, folder: Path) -> None:
    schema = mutated(rng.choice(seeds.SCHEMAS), rng, seeds.SCHEMA_KEYS, seeds.SCHEMA_FIELDS)
    try:
        str(schema_grammar(schema))
    except SchemaError:
        return
    _compile(Grammar("json_schema", json.dumps(schema)))


def _compile(grammar: Grammar) -> None:
    try:
        matcher = _compiler().matcher(grammar)
    except SamplerError as error:
        if not str(error):
            raise Wrong("no message") from None
        return
    for _ in range(3):
        matcher.compute_bitmask()
        if not matcher.consume_tokens([ord("a")]):
            break


def _template(rng: random.Random, folder: Path) -> None:
    source = mutated_text(rng.choice(seeds.TEMPLATES), rng, seeds.TEMPLATE_PIECES)
    try:
        render(compile_template(_environment(), source), {"messages": seeds.MESSAGES, "tools": seeds.TOOLS})
    except TemplateError as error:
        if not str(error):
            raise Wrong("no message") from None


@cache
def _environment() -> TemplateEnvironment:
    return TemplateEnvironment()


TARGETS: dict[str, Target] = {
    "native": _requests(seeds.NATIVE, seeds.NATIVE_FIELDS),
    "openai": _requests(seeds.OPENAI, seeds.OPENAI_FIELDS),
    "responses": _requests(seeds.RESPONSES, seeds.RESPONSES_FIELDS),
    "anthropic": _requests(seeds.ANTHROPIC, seeds.ANTHROPIC_FIELDS),
    "gguf": _gguf,
    "lora": _lora,
    "slot-file": _slot_file,
    "block-file": _block_file,
    "gbnf": _gbnf,
    "schema": _schema,
    "template": _template,
}
