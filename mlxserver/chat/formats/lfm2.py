"""LFM2: Python calls between marks."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.python_calls import PythonCalls

_CALLS = PythonCalls("<|tool_call_start|>", "<|tool_call_end|>")

FAMILIES = (
    Family("lfm2", ("<|tool_list_start|>",), _CALLS),
    Family("lfm2.5", ("List of tools: [",), _CALLS),
    Family("lfm2-calls", ("<|tool_call_start|>",), _CALLS),
)
