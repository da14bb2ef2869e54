"""Hermes, Qwen 2.5 and 3, QwQ, SmolLM3, Granite 4, Bielik and many fine-tunes: JSON in ``<tool_call>``."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.json_calls import JsonCalls

FAMILIES = (
    Family(
        "hermes",
        ("<tool_call>",),
        JsonCalls("<tool_call>", "</tool_call>", break_="\n"),
        absent=("<function=", "<arg_key>", "<invoke"),
    ),
)
