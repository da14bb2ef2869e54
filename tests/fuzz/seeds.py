"""Valid inputs, and the words that mutations put into them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np

from mlxserver.kv.block_hash import block_hash
from mlxserver.kv.disk.entry import Kind, Name, header_of, packed_tokens, space_folder
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.slot_file import write_slot_file
from mlxserver.kv.spans import KVSpan
from mlxserver.kv.state_file import Tensor, read_state
from mlxserver.models.model import Model
from tests.models import tiny
from tests.models.gguf_files import KINDS
from tests.models.lora.adapters import as_model, gguf_tensors, matrices, write_gguf, write_mlx, write_peft

SPACE = "a model"

# ---------------------------------------------------------------------- requests

_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": _SCHEMA}}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
_SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 5,
    "seed": 1,
    "logit_bias": [[5, 1.0], ["a", -1]],
    "samplers": ["top_k", "temperature"],
    "dry_multiplier": 1.0,
    "dry_sequence_breakers": ["\n"],
    "mirostat": 2,
    "n_probs": 2,
    "post_sampling_probs": True,
    "min_keep": 1,
    "repeat_last_n": 64,
    "ignore_eos": True,
    "grammar": 'root ::= "a"',
    "grammar_lazy": True,
    "grammar_triggers": [{"type": 1, "value": "a"}, {"type": 2, "value": "(a|b)+"}],
    "preserved_tokens": ["a"],
    "json_schema": _SCHEMA,
    "stop": ["x", "yy"],
    "stream": True,
    "n_predict": 3,
    "n_keep": 1,
    "n_discard": 1,
    "n_cache_reuse": 2,
    "n_indent": 2,
    "t_max_predict_ms": 10,
    "cache_prompt": False,
    "id_slot": 0,
    "lora": [{"id": 0, "scale": 1.0}],
    "response_fields": ["content", "timings/prompt_n"],
    "return_tokens": True,
    "return_progress": True,
    "timings_per_token": True,
    "verbose": True,
    "n_cmpl": 2,
    "reasoning_format": "deepseek",
    "reasoning_budget_tokens": 5,
    "reasoning_budget_start_tag": "<think>",
    "reasoning_budget_end_tags": ["</think>"],
    "reasoning_control": True,
    "chat_format": 1,
    "chat_parser": "{}",
    "generation_prompt": "x",
    "sse_ping_interval": 1,
    "echo": True,
    "backend_sampling": True,
}
NATIVE_FIELDS = _SAMPLING | {
    "prompt": ["a", [1, 2], [3, "b"], {"prompt_string": "c"}],
    "input_prefix": "a",
    "input_suffix": "b",
    "input_extra": [{"filename": "f", "text": "t"}],
    "content": "a",
    "add_special": True,
    "with_pieces": True,
    "tokens": [1, 2],
    "filename": "f",
    "name": "n",
    "input": ["a", [1]],
    "embd_normalize": 1,
    "encoding_format": "base64",
}
NATIVE: dict[str, list[Any]] = {
    "/completion": [
        {"prompt": "a"},
        {"prompt": ["a", [1, 2]], "n_predict": 2},
        {"prompt": "a", "stream": True, "n_probs": 2},
        {"prompt": "a"} | _SAMPLING,
    ],
    "/infill": [{"input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": [{"text": "x"}]}],
    "/tokenize": [{"content": ["a", 5, "b"], "with_pieces": True, "add_special": True}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
    "/apply-template": [{"messages": [{"role": "user", "content": "a"}]}],
    "/embedding": [{"content": ["a", [1, 2]], "embd_normalize": 2}],
    "/v1/embeddings": [{"input": ["a"], "encoding_format": "base64"}],
    "/lora-adapters": [[{"id": 0, "scale": 1.0}]],
    "/lora-adapters/load": [{"name": "n", "scale": 1.0}],
    "/lora-adapters/unload": [{"id": 0}],
    "/v1/streams/lookup": [{"conversation_ids": ["a", "b"]}],
}
_MESSAGES = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning_content": "r"},
    {"role": "tool", "tool_call_id": "c", "content": "x"},
    {"role": "user", "content": "b"},
]
OPENAI_FIELDS = _SAMPLING | {
    "messages": _MESSAGES,
    "tools": [_TOOL],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}},
    "max_tokens": 3,
    "logprobs": True,
    "top_logprobs": 2,
    "n": 2,
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": False, "x": {"y": [1]}},
    "add_generation_prompt": True,
    "continue_final_message": True,
    "reasoning_effort": "low",
    "model": "m",
    "suffix": "s",
    "best_of": 2,
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}],
    "instructions": "i",
    "text": {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA}},
    "max_output_tokens": 5,
    "previous_response_id": "r",
    "reasoning": {"effort": "low"},
    "action": "reasoning_end",
    "id": "x",
}
OPENAI: dict[str, list[Any]] = {
    "/v1/chat/completions": [
        {"messages": _MESSAGES[-1:]},
        {"messages": _MESSAGES, "tools": [_TOOL], "tool_choice": "auto"},
        {"messages": _MESSAGES, "tools": [_TOOL], "tool_choice": "required", "stream": True},
        {"messages": _MESSAGES[:2], "response_format": {"type": "json_object"}, "logprobs": True},
    ],
    "/v1/chat/completions/input_tokens": [{"messages": _MESSAGES}],
    "/v1/chat/completions/control": [{"id": "x", "action": "reasoning_end"}],
    "/v1/completions": [{"prompt": "a", "max_tokens": 2, "logprobs": 2}, {"prompt": ["a"], "stream": True}],
}
RESPONSES_FIELDS = OPENAI_FIELDS | {
    "tools": [{"type": "function", "name": "f", "parameters": _SCHEMA}, {"type": "web_search"}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_object"}},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "truncation": "auto",
    "prompt_cache_key": "k",
}
RESPONSES: dict[str, list[Any]] = {
    path: [
        {"input": "a"},
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_text", "text": "x"}],
                },
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
                {"role": "developer", "content": "d"},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": _SCHEMA}],
            "stream": True,
        },
        {
            "input": [{"role": "user", "content": "a"}],
            "instructions": "i",
            "text": {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA}},
            "reasoning": {"effort": "low"},
        },
    ]
    for path in ("/v1/responses", "/v1/responses/input_tokens")
}
_BLOCKS = [
    {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
    {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "b"}},
    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]},
    {"type": "thinking", "thinking": "r", "signature": "s"},
]
ANTHROPIC_FIELDS = _SAMPLING | {
    "system": [{"type": "text", "text": "s"}],
    "messages": [{"role": "user", "content": _BLOCKS}],
    "max_tokens": 5,
    "stop_sequences": ["x"],
    "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "metadata": {"user_id": "u"},
    "output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}},
    "model": "m",
}
ANTHROPIC: dict[str, list[Any]] = {
    path: [
        {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]},
        {
            "max_tokens": 5,
            "stream": True,
            "system": [{"type": "text", "text": "s"}],
            "messages": [
                {"role": "user", "content": _BLOCKS[:1]},
                {"role": "assistant", "content": [_BLOCKS[3], _BLOCKS[0], _BLOCKS[1]]},
                {"role": "user", "content": [_BLOCKS[2]]},
            ],
            "tools": [{"name": "f", "input_schema": _SCHEMA}],
            "tool_choice": {"type": "any"},
        },
    ]
    for path in ("/v1/messages", "/v1/messages/count_tokens")
}

# ---------------------------------------------------------------------- files

ADAPTER_KEYS = (
    *(
        "r",
        "lora_alpha",
        "peft_type",
        "target_modules",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "bias",
    ),
    *("alora_invocation_tokens", "init_lora_weights", "lora_parameters", "rank", "scale", "fine_tune_type"),
    *("num_layers", "modules_to_save", "use_dora", "fan_in_fan_out", "keys", "dropout"),
)


@cache
def model() -> Model:
    return as_model(tiny.llama())


@cache
def adapters(folder: Path) -> list[tuple[Path, Path, bytes]]:
    """What is loaded, which file of it is changed, and what is in that."""
    made = matrices(model().module, 1, 2, ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"])
    keys = {"adapter__alora__invocation_tokens": [1, 2], "adapter__lora__task_name": "task"}
    one = write_gguf(folder / "lora.gguf", gguf_tensors(KINDS["llama"], model().module, made), **keys)
    mlx, peft = (
        write_mlx(folder / "mlx", made),
        write_peft(folder / "peft", made, rank_pattern={"up_proj": 2}),
    )
    files = [
        (one, one),
        (mlx, mlx / "adapters.safetensors"),
        (mlx, mlx / "adapter_config.json"),
        (peft, peft / "adapter_model.safetensors"),
        (peft, peft / "adapter_config.json"),
    ]
    return [(loaded, damaged, damaged.read_bytes()) for loaded, damaged in files]


@cache
def gguf_files(folder: Path) -> list[bytes]:
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_bool("yes", True)
    writer.add_string("text", "zwölf")
    writer.add_array("texts", ["a", "", "ß"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_tensor("cube", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [path.read_bytes(), adapters(folder)[0][2]]


@cache
def slot_file(folder: Path) -> tuple[Any, dict[str, Tensor]]:
    """Header and tensors."""
    keys, values = mx.arange(24).reshape(1, 2, 3, 4).astype(mx.bfloat16), mx.ones((1, 2, 3, 4))
    path = folder / "seed"
    identity = CacheIdentity(adapters=(("ab", 0.5),), tenant="t")
    write_slot_file(path, SPACE, (5, 6, 7), identity, KVSpan((((keys,), (values,)),)), None, 2)
    with path.open("rb", buffering=0) as file:
        return read_state(file)


@cache
def block_file() -> tuple[Any, dict[str, Tensor]]:
    identity, tokens, parent = CacheIdentity(tenant="t"), (5, 6, 7), bytes(32)
    hash = block_hash(parent, identity, tokens)
    name = Name(Kind.BLOCK, space_folder(SPACE), hash, parent, identity, packed_tokens(tokens), 0)
    return header_of(name, SPACE, 96), {"0.keys.0": Tensor("F32", np.zeros((1, 2, 3, 4), np.float32))}


# ---------------------------------------------------------------------- grammars and templates

GRAMMARS = (
    'root ::= "a" b* [c-e]+ | (b "x"){2,5}\nb ::= [^\\n"] | "\\u00e9" # comment\n',
    'root ::= ws "{" (pair ("," pair)*)? "}"\npair ::= string ":" value\nvalue ::= root | string\n'
    'string ::= "\\"" [a-z]* "\\""\nws ::= [ \\t]*\n',
    "root ::= <[97]> !<[98]> . root?\n",
    '%llguidance {}\nstart: "a" b | /[a-z]+/\nb: "x" start?\n',
)
GRAMMAR_PIECES = (
    *(
        "::=",
        "|",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "*",
        "+",
        "?",
        "{1000}",
        "{0,2000}",
        "{,5}",
        "\\",
        "\\x41",
        "root",
    ),
    *(
        "\n",
        '"',
        "^",
        "-",
        ".",
        "<[5]>",
        "!<[5]>",
        "#",
        "a",
        "b",
        "\\U0010ffff",
        "\\uD800",
        "%json {}",
        "/a*/",
        "&",
    ),
)
SCHEMAS: tuple[Any, ...] = (
    _SCHEMA,
    {"anyOf": [{"type": "integer", "minimum": -5, "maximum": 105}, {"const": "x"}, {"$ref": "#/$defs/t"}]}
    | {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 3}}},
    {"type": "string", "pattern": "^[a-c]{2}(x|y)+$"},
    {"type": ["object", "null"], "additionalProperties": {"type": "number", "multipleOf": 0.5}},
    {"allOf": [{"properties": {"a": {"enum": [1, "b", None]}}}, {"required": ["a"], "type": "object"}]},
    {"type": "array", "prefixItems": [{"format": "date-time", "type": "string"}], "minItems": 1},
)
SCHEMA_FIELDS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": True, "b c": {"type": "null"}},
    "required": ["a", "q"],
    "additionalProperties": False,
    "items": {"type": "integer"},
    "prefixItems": [{}, {}],
    "minItems": 2,
    "maxItems": 4,
    "minLength": 1,
    "maxLength": 9,
    "pattern": "^a*$",
    "format": "uuid",
    "enum": ["a", 1, None, {"x": []}],
    "const": {"a": [1]},
    "minimum": -3,
    "exclusiveMaximum": 7.5,
    "multipleOf": 3,
    "anyOf": [{}, {"type": "string"}],
    "oneOf": [{"type": "string"}, {"type": "null"}],
    "allOf": [{"type": "object"}],
    "not": {},
    "$ref": "#/$defs/t",
    "$defs": {"t": {"$ref": "#"}},
    "patternProperties": {"^a": {}},
    "uniqueItems": True,
    "nullable": True,
}
SCHEMA_KEYS = tuple(SCHEMA_FIELDS)
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [_CALL]}]
TOOLS = [_TOOL]
TEMPLATES = (
    "{%- for m in messages %}{{ '<|' + m.role + '|>' + (m['content'] or '')|trim }}{% endfor %}",
    "{% set ns = namespace(x=0) %}{% for m in messages[::-1] %}{% set ns.x = ns.x + 1 %}"
    "{% if loop.first and not loop.last %}{{ m|tojson(indent=2) }}{% endif %}{% endfor %}{{ ns.x }}",
    "{% macro f(a, b=1) %}{{ a ~ b }}{% endmacro %}{{ f('x')|upper }}{{ tools|length }}"
    "{{ messages|map(attribute='role')|join(', ') }}{{ '%s-%d' % ('a', 5) }}{{ 'a,b'.split(',')[-1] }}",
)
TEMPLATE_PIECES = (
    *(
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "messages",
        "loop",
        "ns.x",
        "|",
        "~",
        "+",
        "*",
        "**",
        "%",
        "10",
        "999999",
    ),
    *(
        "range(9999)",
        "[0]",
        ".__class__",
        "|attr('__class__')",
        "|tojson",
        "|list",
        "|join",
        "|replace('a','aa')",
    ),
    *(
        "{% endfor %}",
        "{% for x in range(99) %}",
        "{% endif %}",
        "{% if x %}",
        "'a'",
        "(",
        ")",
        "[",
        "]",
        "none",
    ),
    *(
        "f(1)",
        "namespace()",
        ".format('x')",
        "|format(5)",
        "|indent(5)",
        "|batch(3)",
        ".items()",
        "|sort",
        "\n",
    ),
)
