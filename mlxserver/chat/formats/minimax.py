"""MiniMax M2: invocations with named parameters; M1: JSON, one call a line."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.json_calls import JsonCalls
from mlxserver.chat.formats.tagged_calls import TaggedCalls

FAMILIES = (
    Family(
        "minimax-m2",
        ("<minimax:tool_call>", "<invoke name="),
        TaggedCalls(
            "<minimax:tool_call>",
            "</minimax:tool_call>",
            ('<invoke name="', '">'),
            ('<parameter name="', '">'),
            "</parameter>",
            "</invoke>",
            holds_several=True,
        ),
    ),
    Family("minimax-m1", ("<tool_calls>\n{",), JsonCalls("<tool_calls>", "</tool_calls>", break_="\n")),
)
