"""Solar Open: the id, the name, the arguments, each behind a mark."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.header_calls import HeaderCalls

FAMILIES = (
    Family(
        "solar-open",
        ("<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>"),
        HeaderCalls(
            "<|tool_call:begin|>",
            ("<|tool_call:args|>",),
            "<|tool_call:end|>",
            id_mark="<|tool_call:name|>",
            section=("<|tool_calls|>", "<|calls|>"),
            id_first=True,
            id_size=10,
        ),
    ),
)
