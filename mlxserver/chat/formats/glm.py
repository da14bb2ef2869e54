"""GLM 4.5 to 4.7 and Laguna: keys and values in tags, and Hunyuan 3 with longer names for them."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.tagged_calls import TaggedCalls

_HY = ":opensource>"

FAMILIES = (
    Family(
        "glm-4.7",
        ("<tool_call>", "<arg_key>", "</arg_key><arg_value>"),
        TaggedCalls(
            "<tool_call>",
            "</tool_call>",
            ("", ""),
            ("<arg_key>", "</arg_key>"),
            "</arg_value>",
            value_start="<arg_value>",
            break_="",
        ),
    ),
    Family(
        "glm-4.5",
        ("<tool_call>", "<arg_key>"),
        TaggedCalls(
            "<tool_call>",
            "</tool_call>",
            ("", "\n"),
            ("<arg_key>", "</arg_key>"),
            "</arg_value>",
            value_start="<arg_value>",
        ),
    ),
    Family(
        "hunyuan",
        ("<tool_calls:opensource>", "<arg_key:opensource>"),
        TaggedCalls(
            "<tool_calls:opensource>",
            "</tool_calls:opensource>",
            (f"<tool_call{_HY}", f"<tool_sep{_HY}"),
            (f"<arg_key{_HY}", f"</arg_key{_HY}"),
            f"</arg_value{_HY}",
            f"</tool_call{_HY}",
            value_start=f"<arg_value{_HY}",
            holds_several=True,
        ),
    ),
)
