"""Grammars made ready to constrain tokens, once for each text."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from mlxserver.sampling.grammar.gbnf import parse_gbnf
from mlxserver.sampling.grammar.lark import to_lark
from mlxserver.sampling.grammar.nodes import GrammarError
from mlxserver.sampling.grammar.recursion import check_left_recursion
from mlxserver.sampling.grammar.schema import ANSWER_ROOT, SchemaError, answer_rules, schema_grammar
from mlxserver.sampling.grammar.schema_bounds import refused_number_of_text
from mlxserver.sampling.grammar.state import LazyStart
from mlxserver.sampling.grammar.tokens import make_tokenizer
from mlxserver.sampling.params import Grammar, SamplerError
from mlxserver.sampling.vocabulary import Vocabulary

log = logging.getLogger("mlxserver.srv")

LLGUIDANCE = "%llguidance"
"""What a grammar in llguidance's own notation begins with."""
MAX_TEXT = 150_000
"""Characters of a grammar."""
_KEPT = 256
_KEPT_TEXT = 8_000_000
"""Characters of all grammars whose results are kept."""


class GrammarCompiler:
    """May be called from any thread; one grammar is compiled at a time, so that none takes all cores."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._compiling = threading.Lock()
        self._ready: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        return make_tokenizer(self._vocabulary)

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """A matcher at the beginning of the grammar's text. Raises SamplerError for an unusable grammar.

        Costs next to nothing for a grammar met before, as long as it is kept.
        """
        key = (grammar.kind, grammar.text)
        ready = self._kept(key)
        if ready is None:
            with self._compiling:
                ready = self._kept(key) or self._compile(grammar)
            self._keep(key, ready)
        return ready.deep_copy()

    def check(self, grammar: Grammar) -> None:
        """Raises SamplerError for what ``GrammarState`` would not take. May take long."""
        self.matcher(grammar)
        LazyStart(grammar.triggers)

    def _kept(self, key: tuple[str, str]) -> LLMatcher | None:
        with self._lock:
            if key in self._ready:
                self._ready.move_to_end(key)
            return self._ready.get(key)

    def _keep(self, key: tuple[str, str], ready: LLMatcher) -> None:
        with self._lock:
            self._ready[key] = ready
            while len(self._ready) > 1 and (len(self._ready) > _KEPT or _size(self._ready) > _KEPT_TEXT):
                self._ready.popitem(last=False)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        try:
            matcher = LLMatcher(self.tokenizer, self._lark(grammar), log_level=0, limits=_LIMITS)
            if matcher.is_error():
                raise _refusal(matcher.get_error(), grammar)
        except RecursionError:
            raise SamplerError("the grammar is nested too deeply") from None
        except SchemaError as error:
            raise SamplerError(str(error)) from None
        except GrammarError as error:
            log.warning("grammar refused: %s", error)
            raise SamplerError("failed to parse grammar") from None
        return matcher

    def _lark(self, grammar: Grammar) -> str:
        if len(grammar.text) > MAX_TEXT:
            raise GrammarError("the grammar is too large")
        if grammar.kind == "lark":
            if refused := refused_number_of_text(grammar.text):
                raise SchemaError(refused)
            return grammar.text
        root = "root"
        if grammar.kind == "json_schema":
            rules = schema_grammar(_parsed(grammar.text)).rules()
        elif grammar.kind == "json_answer":
            rules, root = answer_rules(schema_grammar(_parsed(grammar.text))), ANSWER_ROOT
        else:
            rules = parse_gbnf(grammar.text, self._token_id)
        check_left_recursion(rules)
        return to_lark(rules, root)

    def _token_id(self, text: str) -> int | None:
        tokens = self._vocabulary.encode(text, parse_special=True)
        return tokens[0] if len(tokens) == 1 else None


def check_without_tokens(grammar: str, schema: Any) -> None:
    """Raises GrammarError for what no vocabulary could use. A schema counts where there is no grammar."""
    if grammar.startswith(LLGUIDANCE):
        return
    rules = parse_gbnf(grammar, lambda text: 0) if grammar else schema_grammar(schema).rules()
    check_left_recursion(rules)
    to_lark(rules)


def _parsed(schema: str) -> Any:
    try:
        return json.loads(schema)
    except ValueError as error:
        raise SchemaError(str(error)) from None


def _refusal(reason: str, grammar: Grammar) -> GrammarError:
    """llguidance says in its first line what it cannot do."""
    first = reason.partition("\n")[0]
    if grammar.kind not in ("json_schema", "json_answer"):
        return GrammarError(first)
    if "oneOf" in first:
        first = "oneOf: more than one of the alternatives may fit"
    return SchemaError(first.rpartition("failed to compile JSON schema: ")[2])


def _size(ready: OrderedDict[tuple[str, str], LLMatcher]) -> int:
    return sum(len(text) for _, text in ready)


_LIMITS = LLParserLimits(step_max_items=1_000_000, step_lexer_fuel=2_000_000, verbose_errors=False)
"""Items are small here, since every character is a lexeme; a step still ends within about 50 ms."""


def compiler_of(vocabulary: Vocabulary) -> GrammarCompiler:
    """The one compiler of a vocabulary: requests are checked with the one that the engine uses."""
    with _compilers_lock:
        if vocabulary not in _compilers:
            _compilers[vocabulary] = GrammarCompiler(vocabulary)
        return _compilers[vocabulary]


_compilers: WeakKeyDictionary[Vocabulary, GrammarCompiler] = WeakKeyDictionary()
_compilers_lock = threading.Lock()
