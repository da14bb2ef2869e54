"""Mistral: a list of JSON calls in older templates, names before JSON in newer ones."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.header_calls import HeaderCalls
from mlxserver.chat.formats.json_calls import JsonCalls

_START = "[TOOL_CALLS]"

FAMILIES = (
    Family(
        "mistral-small-3.2",
        (_START, "[CALL_ID]", "[ARGS]"),
        HeaderCalls(_START, ("[ARGS]",), id_mark="[CALL_ID]", takes_json=True),
    ),
    Family("ministral", (_START, "[ARGS]"), HeaderCalls(_START, ("[ARGS]",), takes_json=True)),
    Family("mistral-nemo", (_START,), JsonCalls(_START, is_list=True)),
)
