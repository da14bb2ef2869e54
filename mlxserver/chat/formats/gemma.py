"""Gemma 4 and FunctionGemma."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.gemma_calls import GemmaCalls

FAMILIES = (
    Family("gemma4", ("<|tool_call>call:",), GemmaCalls("<|tool_call>", "<tool_call|>", '<|"|>')),
    Family(
        "function-gemma",
        ("<start_function_call>call:",),
        GemmaCalls("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
)
