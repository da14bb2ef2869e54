"""JSON schema → llama.cpp's grammar notation, in the order and with the spaces of llama.cpp's converter.

Whatever that notation cannot say, or llama.cpp's converter passes over, is left to llguidance's own reading
of JSON schema, part by part. So what is generated always fits the schema, or the schema is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mlxserver.sampling.grammar.gbnf import parse_gbnf
from mlxserver.sampling.grammar.integer_range import MOST_DIGITS, integer_range
from mlxserver.sampling.grammar.nodes import Alt, GrammarError, Json, Ref, Rules, Seq
from mlxserver.sampling.grammar.schema_bounds import refused_number
from mlxserver.sampling.grammar.schema_overlap import are_exclusive
from mlxserver.sampling.grammar.schema_rules import (
    PRIMITIVES,
    RESERVED,
    SPACE,
    STRING_FORMATS,
    WHOLE_CHAR,
    literal,
    other_keys,
    repetition,
)
from mlxserver.sampling.grammar.schema_words import TYPES, compact, demands, fits_type, type_of, without_notes

MAX_RULES = 5_000
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9-]+")
_OWN_SPACES = {"whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})"}


class SchemaError(GrammarError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"JSON schema conversion failed:\n{reason}")


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """``text`` names ``parts`` as rules without defining them: JSON schemas that llguidance reads."""

    text: str
    parts: dict[str, dict[str, Any]]

    def __str__(self) -> str:
        parts = (f"{name} ::= %json {compact(part)}\n" for name, part in self.parts.items())
        return self.text + "".join(parts)

    def rules(self) -> Rules:
        given = {name: Alt((Seq((Json(compact(part)),)),)) for name, part in self.parts.items()}
        rules = dict(parse_gbnf(self.text, lambda text: None, given))
        if "char" in rules:
            rules["char"] = parse_gbnf(WHOLE_CHAR, lambda text: None)["root"]
        return rules


ANSWER_ROOT = "answer"
_ANSWER = f"""root ::= "```json" space response-format space "```" | space response-format space
space ::= {SPACE}
"""


def answer_rules(grammar: SchemaGrammar) -> Rules:
    """Under ``ANSWER_ROOT``: the JSON text with space around it, or in a Markdown fence, as in llama.cpp."""
    rules = grammar.rules()
    text = {"response-format": Alt((Seq((Ref("root"),)),))}
    around = parse_gbnf(_ANSWER, lambda text: None, text)
    return {**rules, **text, "space": around["space"], ANSWER_ROOT: around["root"]}


def schema_grammar(schema: Any) -> SchemaGrammar:
    """Raises SchemaError, with llama.cpp's words where it refuses the schema too."""
    if schema in ([], None):
        schema = {}
    if not isinstance(schema, dict):
        raise SchemaError(f"Unrecognized schema: {compact(schema)}")
    if refused := refused_number(schema):
        raise SchemaError(refused)
    try:
        return _convert(schema)
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None
    except (TypeError, AttributeError) as error:
        raise SchemaError(f"malformed schema ({error})") from None


def _convert(schema: dict[str, Any]) -> SchemaGrammar:
    converter = _Converter(schema)
    try:
        converter.visit(schema, "")
        return converter.grammar()
    except _WholeSchema:
        return SchemaGrammar("root ::= schema-0\n", {"schema-0": _with_own_spaces(schema)})


class _WholeSchema(Exception):
    """A part cannot be taken out of its schema."""


class _Converter:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._rules = {"space": SPACE}
        self._parts: dict[str, dict[str, Any]] = {}
        self._names_of_refs: dict[str, str] = {}

    def grammar(self) -> SchemaGrammar:
        rules = (f"{name} ::= {self._rules[name]}\n" for name in sorted(self._rules))
        return SchemaGrammar("".join(rules), self._parts)

    # ------------------------------------------------------------ one schema

    def visit(self, schema: Any, name: str) -> str:
        """The name of a rule for ``schema``."""
        rule_name = "root" if not name else f"{name}-" if name in RESERVED else name
        if not isinstance(schema, dict):
            if schema is True:
                return self._add(rule_name, self._primitive("value"))
            raise SchemaError(f"Unrecognized schema: {compact(schema)}")
        words = demands(schema)
        if "$ref" in schema:
            return self._ref(schema, words, rule_name)
        if "oneOf" in schema or "anyOf" in schema:
            return self._union(schema, words, name, rule_name)
        kind = schema.get("type")
        if isinstance(kind, list):
            options = [schema | {"type": one} for one in kind]
            return self._add(rule_name, self._options(options, name))
        if kind is not None and kind not in TYPES:
            raise SchemaError(f"Unrecognized schema: {compact(schema)}")
        if "const" in schema or "enum" in schema:
            return self._constants(schema, words, rule_name)
        if "allOf" in schema:
            return self._all_of(schema, words, name, rule_name)
        return self._of_type(schema, kind, name, rule_name)

    def _of_type(self, schema: dict[str, Any], kind: str | None, name: str, rule_name: str) -> str:
        words = demands(schema) - {"type"}
        if kind in (None, "object") and (words & {"properties", "additionalProperties"}):
            return self._object(schema, words, name, rule_name)
        if kind in (None, "array") and words & {"items", "prefixItems"}:
            return self._array(schema, words, name, rule_name)
        if kind in (None, "string") and words:
            return self._string(schema, kind, words, rule_name)
        words = demands(schema, kind) - {"type"}
        if kind == "integer" and words:
            return self._integer(schema, words, rule_name)
        if words:
            return self._leave(schema, rule_name)
        if kind is None or kind == "object":
            return self._add(rule_name, self._primitive(kind or ("value" if schema else "object")))
        return self._primitive(kind, "root" if rule_name == "root" else kind)

    def _leave(self, schema: dict[str, Any], rule_name: str) -> str:
        """To llguidance, with the definitions that it refers to."""
        part = _with_own_spaces(schema)
        for ref in _refs(schema):
            place = next((p for p in ("$defs", "definitions") if ref.startswith(f"#/{p}/")), None)
            if place is None:
                raise _WholeSchema
            part[place] = self._root.get(place)
        if schema is self._root:
            raise _WholeSchema
        part_name = f"schema-{len(self._parts)}"
        self._parts[part_name] = part
        return self._add(rule_name, part_name)

    # ----------------------------------------------------- references, unions

    def _ref(self, schema: dict[str, Any], words: set[str], rule_name: str) -> str:
        ref = schema["$ref"]
        if words != {"$ref"}:
            return self._leave(schema, rule_name)
        if not isinstance(ref, str) or not ref.startswith("#/"):
            raise _WholeSchema
        return self._add(rule_name, self._resolve(ref))

    def _resolve(self, ref: str) -> str:
        if ref not in self._names_of_refs:
            name = "ref" + _NOT_IN_NAMES.sub("-", ref[1:])
            if name in self._names_of_refs.values() or name in self._rules:
                raise _WholeSchema
            self._names_of_refs[ref] = name
            if self.visit(self._target(ref), name) != name:
                raise _WholeSchema
        return self._names_of_refs[ref]

    def _target(self, ref: str) -> Any:
        target: Any = self._root
        for raw in ref.split("/")[1:]:
            step = raw.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and step in target:
                target = target[step]
            elif isinstance(target, list) and step.isdecimal() and int(step) < len(target):
                target = target[int(step)]
            else:
                raise SchemaError(f"Error resolving ref {ref}: {raw} not in {compact(target)}")
        return target

    def _union(self, schema: dict[str, Any], words: set[str], name: str, rule_name: str) -> str:
        word = "oneOf" if "oneOf" in schema else "anyOf"
        options = schema[word]
        if not isinstance(options, list) or not options:
            raise SchemaError(f"Unrecognized schema: {compact(schema)}")
        if words - {word, "type"} or not self._all_of_type(options, schema.get("type")):
            return self._leave(schema, rule_name)
        if word == "oneOf" and not are_exclusive([self._followed(option) for option in options]):
            return self._leave(schema, rule_name)
        return self._add(rule_name, self._options(options, name))

    def _options(self, options: list[Any], name: str) -> str:
        stem = f"{name}-" if name else "alternative-"
        return " | ".join(self.visit(option, f"{stem}{number}") for number, option in enumerate(options))

    def _all_of_type(self, options: list[Any], kind: Any) -> bool:
        """Whether the options say their types themselves, so that one beside them adds nothing."""
        if kind is None:
            return True
        found = [self._followed(option) for option in options]
        return all(isinstance(option, dict) and option.get("type") == kind for option in found)

    def _followed(self, schema: Any) -> Any:
        for _ in range(20):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                break
            if not schema["$ref"].startswith("#/") or demands(schema) != {"$ref"}:
                break
            schema = self._target(schema["$ref"])
        return schema

    def _constants(self, schema: dict[str, Any], words: set[str], rule_name: str) -> str:
        kind = schema.get("type")
        word = "const" if "const" in schema else "enum"
        values = [schema["const"]] if word == "const" else schema["enum"]
        if not isinstance(values, list) or not values:
            raise SchemaError(f"Unrecognized schema: {compact(schema)}")
        others = words - {word, "type"}
        if any(others & demands(schema, type_of(value)) for value in values):
            return self._leave(schema, rule_name)
        fitting = [literal(compact(value)) for value in values if kind is None or fits_type(value, kind)]
        if not fitting:
            raise SchemaError(f"no value of the {word} is of the type {kind}: {compact(schema)}")
        return self._add(rule_name, fitting[0] if word == "const" else f"({' | '.join(fitting)})")

    def _all_of(self, schema: dict[str, Any], words: set[str], name: str, rule_name: str) -> str:
        """Objects whose properties do not meet are taken together; all of these are written then."""
        parts = [self._followed(part) for part in schema["allOf"]]
        simple = all(_has_only_properties(part) for part in parts)
        if words - {"allOf", "type"} or schema.get("type") not in (None, "object") or not (parts and simple):
            return self._leave(schema, rule_name)
        properties: dict[str, Any] = {}
        for part in parts:
            if properties.keys() & part["properties"].keys():
                return self._leave(schema, rule_name)
            properties |= part["properties"]
        required = {key for part in parts for key in part.get("required", ())}
        if required - properties.keys():
            return self._leave(schema, rule_name)
        return self._members(properties, set(properties), None, name, rule_name)

    # ---------------------------------------------------------------- objects

    def _object(self, schema: dict[str, Any], words: set[str], name: str, rule_name: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            raise SchemaError(f"Unrecognized schema: {compact(properties)}")
        words = words & demands(schema, "object") if schema.get("type") else words
        understood = {"properties", "required", "additionalProperties"}
        fits = isinstance(required, list) and set(required) <= properties.keys() and "*" not in properties
        if words - understood or not fits:
            return self._leave(schema, rule_name)
        more = schema.get("additionalProperties")
        return self._members(properties, set(required), None if more is False else more, name, rule_name)

    def _members(
        self, properties: dict[str, Any], required: set[str], more: Any, name: str, rule_name: str
    ) -> str:
        stem = f"{name}-" if name else ""
        rules = {key: self._member(key, value, stem) for key, value in properties.items()}
        needed = [rules[key] for key in properties if key in required]
        optional = [(key, rules[key]) for key in properties if key not in required]
        if more is not None:
            optional.append(("*", self._more(more, list(properties), stem)))
        text = '"{" space ' + ' "," space '.join(needed)
        if optional:
            choice = self._some_of(optional, stem)
            text += f' ( "," space ( {choice} ) )?' if needed else f" ({choice})?"
        return self._add(rule_name, text + ' space "}"')

    def _member(self, key: str, schema: Any, stem: str) -> str:
        # an empty name is the root's
        value = self.visit(schema, f"{stem}{key}" or "-")
        return self._add(f"{stem}{key}-kv", f'{literal(compact(key))} space ":" space {value}')

    def _more(self, schema: Any, keys: list[str], stem: str) -> str:
        if schema is True:
            value = self._primitive("value")
        else:
            value = self.visit(schema, f"{stem}additional-value")
        key = self._primitive("string")
        if keys:
            self._primitive("char")
            key = self._add(f"{stem}additional-k", other_keys(keys))
        return self._add(f"{stem}additional-kv", f'{key} ":" space {value}')

    def _some_of(self, optional: list[tuple[str, str]], stem: str) -> str:
        """One or more of the members, in their order; the last one ("*") any number of times."""
        choices, rest = [], ""
        for place in reversed(range(len(optional))):
            key, rule = optional[place]
            more = f'( "," space {rule} )'
            choices.append(f"{rule} {more}* {rest}".rstrip() if key == "*" else f"{rule} {rest}".rstrip())
            if place > 0:
                following = f"{more}{'*' if key == '*' else '?'} {rest}".rstrip()
                rest = self._add(f"{stem}{optional[place - 1][0]}-rest", following)
        return " | ".join(reversed(choices))

    # ----------------------------------------------------------------- arrays

    def _array(self, schema: dict[str, Any], words: set[str], name: str, rule_name: str) -> str:
        words = words & demands(schema, "array") if schema.get("type") else words
        stem = f"{name}-" if name else ""
        word = "items" if "items" in schema else "prefixItems"
        items = schema[word]
        if isinstance(items, list):
            if words - {word}:
                return self._leave(schema, rule_name)
            parts = [self.visit(item, f"{stem}tuple-{number}") for number, item in enumerate(items)]
            return self._add(rule_name, '"[" space ' + ' "," space '.join(parts) + ' space "]"')
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if (
            words - {"items", "minItems", "maxItems"}
            or not _are_counts(least, most)
            or isinstance(items, bool)
        ):
            return self._leave(schema, rule_name)
        item = self.visit(items, f"{stem}item")
        return self._add(rule_name, f'"[" space {repetition(item, least, most, separator=True)} space "]"')

    # ---------------------------------------------------------------- scalars

    def _string(self, schema: dict[str, Any], kind: str | None, words: set[str], rule_name: str) -> str:
        words = words & demands(schema, "string") if kind else words
        if not words:
            return self._primitive("string", "root" if rule_name == "root" else "string")
        form = schema.get("format")
        if words == {"format"} and isinstance(form, str):
            if re.fullmatch("uuid[1-5]?", form):
                return self._primitive("uuid", "root" if rule_name == "root" else form)
            if f"{form}-string" in STRING_FORMATS:
                return self._add(rule_name, self._primitive(f"{form}-string"))
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if kind == "string" and words <= {"minLength", "maxLength"} and _are_counts(least, most):
            text = repetition(self._primitive("char"), least, most)
            return self._add(rule_name, f'"\\"" {text} "\\""')
        return self._leave(schema, rule_name)

    def _integer(self, schema: dict[str, Any], words: set[str], rule_name: str) -> str:
        lows = [schema[word] + by for word, by in (("minimum", 0), ("exclusiveMinimum", 1)) if word in words]
        highs = [schema[word] - by for word, by in (("maximum", 0), ("exclusiveMaximum", 1)) if word in words]
        bounds = [*lows, *highs]
        plain = all(type(bound) is int and abs(bound) < 10**MOST_DIGITS for bound in bounds)
        if not plain or words - {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}:
            return self._leave(schema, rule_name)
        try:
            text = integer_range(max(lows, default=None), min(highs, default=None))
        except ValueError as error:
            raise SchemaError(str(error)) from None
        return self._add(rule_name, f"({text})")

    # ------------------------------------------------------------------ rules

    def _add(self, name: str, text: str) -> str:
        """Rules of one name and different texts are numbered."""
        stem = key = _NOT_IN_NAMES.sub("-", name)
        number = 0
        while key in self._names_of_refs.values() and key != name or self._rules.get(key, text) != text:
            key = f"{stem}{number}"
            number += 1
        self._rules[key] = text
        if len(self._rules) > MAX_RULES:
            raise SchemaError("the schema is too large")
        return key

    def _primitive(self, primitive: str, name: str | None = None) -> str:
        text, needs = PRIMITIVES.get(primitive) or STRING_FORMATS[primitive]
        added = self._add(name or primitive, text)
        for need in needs:
            if need not in self._rules:
                self._primitive(need)
        return added


def _with_own_spaces(schema: dict[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = without_notes(schema)
    return part | {"x-guidance": _OWN_SPACES}


def _refs(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [ref for item in schema for ref in _refs(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
    return own + [ref for value in schema.values() for ref in _refs(value)]


def _has_only_properties(schema: Any) -> bool:
    if not isinstance(schema, dict) or schema.get("type") not in (None, "object"):
        return False
    words = demands(schema) - {"type"}
    return (
        "properties" in words
        and words <= {"properties", "required"}
        and isinstance(schema["properties"], dict)
    )


def _are_counts(least: Any, most: Any) -> bool:
    if type(least) is not int or least < 0 or least > 1900:
        return False
    return most is None or type(most) is int and least <= most <= 1900
