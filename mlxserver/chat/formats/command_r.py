"""Cohere: a list of JSON calls with ``tool_name`` and ``parameters``, content between marks."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.json_calls import JsonCalls
from mlxserver.chat.formats.unwrapped import Unwrapped


def _calls(start: str, end: str, dropped: tuple[str, ...] = ()) -> JsonCalls:
    return JsonCalls(start, end, "tool_name", "parameters", True, "\n", dropped)


_TEXT = ("<|START_TEXT|>", "<|END_TEXT|>")
_RESPONSE = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
_ACTION = ("<|START_ACTION|>", "<|END_ACTION|>")

FAMILIES = (
    Family(
        "cohere2",
        ("<|START_TEXT|>", "<|START_ACTION|>"),
        _calls(*_ACTION, _TEXT),
        without_calls=Unwrapped(_TEXT),
    ),
    Family(
        "command-r7b",
        ("<|START_ACTION|>",),
        _calls(*_ACTION, _RESPONSE),
        without_calls=Unwrapped(_RESPONSE),
    ),
    Family("command-r", ("Action:", "```json", '"tool_name"'), _calls("Action:\n```json", "```")),
)
