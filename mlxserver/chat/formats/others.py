"""Families that differ from the common JSON form in their marks only."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.json_calls import JsonCalls
from mlxserver.chat.formats.keyed_calls import KeyedCalls

FAMILIES = (
    Family("apertus", ("<|tools_prefix|>",), KeyedCalls("<|tools_prefix|>", "<|tools_suffix|>")),
    Family("apriel", ("<tool_calls>[",), JsonCalls("<tool_calls>", "</tool_calls>", is_list=True)),
    Family("nemotron-nano-2", ("<TOOLCALL>",), JsonCalls("<TOOLCALL>", "</TOOLCALL>", is_list=True)),
    Family("firefunction", (" functools[",), JsonCalls("functools", is_list=True)),
    Family("gigachat-3.1", ("<|function_call|>",), JsonCalls("<|function_call|>")),
    Family(
        "gigachat-3",
        ("function call<|role_sep|>",),
        JsonCalls("<|message_sep|>\n\nfunction call<|role_sep|>", break_="\n"),
    ),
)
