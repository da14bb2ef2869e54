"""Kimi K2: a section of calls whose header is their id."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.header_calls import KimiCalls

FAMILIES = (
    Family(
        "kimi-k2",
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        KimiCalls(
            "<|tool_call_begin|>",
            ("<|tool_call_argument_begin|>",),
            "<|tool_call_end|>",
            section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ),
    ),
)
