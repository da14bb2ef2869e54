"""MiniCPM 5: functions and parameters as XML with names in attributes."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.tagged_calls import TaggedCalls

FAMILIES = (
    Family(
        "minicpm5",
        ('<function name="', '<param name="'),
        TaggedCalls(
            "",
            "",
            ('<function name="', '">'),
            ('<param name="', '">'),
            "</param>",
            "</function>",
            break_="",
        ),
    ),
)
