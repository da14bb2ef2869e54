"""Qwen3-Coder, Qwen 3.5, Nemotron 3 and StepFun 3.5, and Seed-OSS with marks of its own."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.tagged_calls import TaggedCalls

_FUNCTION, _PARAMETER = ("<function=", ">"), ("<parameter=", ">")

FAMILIES = (
    Family(
        "seed-oss",
        ("<seed:tool_call>", "<function="),
        TaggedCalls(
            "<seed:tool_call>", "</seed:tool_call>", _FUNCTION, _PARAMETER, "</parameter>", "</function>"
        ),
    ),
    Family(
        "qwen3-coder",
        ("<tool_call>", "<function=", "<parameter="),
        TaggedCalls(
            "<tool_call>",
            "</tool_call>",
            _FUNCTION,
            _PARAMETER,
            "</parameter>",
            "</function>",
            pads_values=True,
        ),
    ),
)
