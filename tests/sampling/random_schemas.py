"""Random JSON schemas, and random texts that a grammar lets through."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mlxserver.sampling.grammar.compiler import GrammarCompiler
from mlxserver.sampling.grammar.state import GrammarState
from mlxserver.sampling.params import Grammar

ENDING = frozenset(b'"}]')
KEYS = ["a", "b", "ab", "c d", 'q"', "é", "x-y", "*", "root", "value", "additional"]
PATTERNS = [
    "^[A-Z]{2}-[0-9]{2}$",
    "^a|b$",
    "a+",
    "^.*$",
    "^(x|yz){1,3}$",
    r"^\d{3}$",
    '^"q"$',
    "^[^a]{2}$",
    "(?=a)b",
]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "uri", "hostname", "ipv6", "int32"]


def schemas(depth: int = 3) -> st.SearchStrategy[Any]:
    """Schemas with definitions that refer to each other, also of keywords that no grammar can follow."""
    definitions = st.dictionaries(st.sampled_from(["t", "u v"]), _schema(1), max_size=2)
    return st.builds(
        lambda root, defs: root | {"$defs": {"t": True, "u v": {"type": "null"}} | defs},
        _schema(depth),
        definitions,
    )


def _schema(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    kinds = [_strings(), _integers(), _numbers(), _constants(), _plain(), _mixed_types()]
    if depth > 0:
        inner = _schema(depth - 1)
        kinds += [_objects(inner), _objects(inner), _arrays(inner), _tuples(inner), _unions(inner), _refs()]
    return st.one_of(kinds).flatmap(_spoiled)


def _spoiled(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Now and then a word more, which may fit the schema's type or not."""
    more = {
        "title": "x",
        "minLength": 1,
        "minimum": 3,
        "uniqueItems": True,
        "not": {"type": "null"},
        "minProperties": 1,
        "required": ["a"],
        "enum": ["a", 1, None],
        "maxItems": 2,
    }
    word = st.sampled_from([None] * 12 + list(more))
    return word.map(lambda w: schema if w is None else schema | {w: more[w]})


def _with(fixed: dict[str, Any], **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({key: st.just(value) for key, value in fixed.items()}, optional=optional)


def _strings() -> st.SearchStrategy[dict[str, Any]]:
    small = st.integers(0, 5)
    return st.one_of(
        _with({"type": "string"}, minLength=small, maxLength=small),
        _with({"type": "string"}, pattern=st.sampled_from(PATTERNS)),
        _with({"type": "string"}, format=st.sampled_from(FORMATS)),
    )


def _integers() -> st.SearchStrategy[dict[str, Any]]:
    bound = st.one_of(st.integers(-1200, 1200), st.sampled_from([0, 9, 10, 100, 105, -5, 1.5, 10**17]))
    words = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    several = st.sampled_from([2, 3, 7])
    return st.one_of(
        _with({"type": "integer"}, **dict.fromkeys(words, bound)),
        _with({"type": "integer"}, minimum=bound, multipleOf=several),
    )


def _numbers() -> st.SearchStrategy[dict[str, Any]]:
    bound = st.one_of(st.integers(-50, 50), st.floats(-100, 100).map(lambda x: round(x, 2)))
    return _with(
        {"type": "number"}, minimum=bound, exclusiveMaximum=bound, multipleOf=st.sampled_from([0.5, 2])
    )


def _constants() -> st.SearchStrategy[dict[str, Any]]:
    values: st.SearchStrategy[Any] = st.sampled_from(
        ["red", 'a "b"\n', 3, -1.5, 2.5e3, None, True, {"a": [1, "b"]}, [], "é\u007f"]
    )
    return st.one_of(
        st.builds(lambda value: {"const": value}, values),
        st.builds(lambda many: {"enum": many}, st.lists(values, min_size=1, max_size=4)),
    )


def _plain() -> st.SearchStrategy[dict[str, Any]]:
    names = ["boolean", "null", "string", "object", "array", "number", "integer"]
    return st.one_of(st.sampled_from(names).map(lambda name: {"type": name}), st.just({}))


def _mixed_types() -> st.SearchStrategy[dict[str, Any]]:
    names = st.lists(st.sampled_from(["string", "null", "integer", "boolean"]), min_size=1, unique=True)
    return st.builds(lambda kinds: {"type": kinds, "maxLength": 3}, names)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    keys = st.sampled_from(KEYS)
    return _with(
        {"type": "object"},
        properties=st.dictionaries(keys, inner, max_size=4),
        required=st.lists(keys, max_size=2, unique=True),
        additionalProperties=st.one_of(st.booleans(), inner),
    )


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    count = st.integers(0, 3)
    return inner.flatmap(lambda item: _with({"type": "array", "items": item}, minItems=count, maxItems=count))


def _tuples(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda items: {"type": "array", "prefixItems": items}, st.lists(inner, max_size=3))


def _unions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    words = st.sampled_from(["anyOf", "oneOf", "allOf"])
    return st.builds(lambda word, options: {word: options}, words, st.lists(inner, min_size=1, max_size=3))


def _refs() -> st.SearchStrategy[dict[str, Any]]:
    return st.sampled_from(["#/$defs/t", "#/$defs/u v", "#/absent", "#"]).map(lambda ref: {"$ref": ref})


def random_text(compiler: GrammarCompiler, grammar: Grammar, vocabulary: Any, seed: int) -> bytes | None:
    """A complete text; None where it gets too long. Raises SamplerError where the grammar is refused.

    The longer it gets, the more the choice is for what ends strings, lists and objects.
    """
    state = GrammarState(grammar, compiler.matcher(grammar), compiler.tokenizer, vocabulary)
    chance, text = random.Random(seed), b""
    mask = np.zeros((vocabulary.n_vocab + 31) // 32, dtype=np.int32)
    for step in range(600):
        state.fill(mask)
        state.check()
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: vocabulary.n_vocab]
        allowed: list[int] = np.nonzero(bits)[0].tolist()
        ending = [token for token in allowed if token in ENDING or token in vocabulary.eog_ids]
        token = chance.choice(ending if ending and chance.random() < step / 60 else allowed)
        if token in vocabulary.eog_ids:
            return text
        text += vocabulary.piece(token)
        state.accept(token)
        state.check()
    return None
