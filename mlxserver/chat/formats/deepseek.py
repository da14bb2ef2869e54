"""DeepSeek: R1 and V3 write a name before JSON, V3.1 without fences, V3.2 and V4 tagged parameters."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.header_calls import HeaderCalls
from mlxserver.chat.formats.tagged_calls import TaggedCalls

_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_BEGIN, _END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_DSML = "｜DSML｜"


def _tagged(block: str) -> TaggedCalls:
    return TaggedCalls(
        f"<{_DSML}{block}>",
        f"</{_DSML}{block}>",
        (f'<{_DSML}invoke name="', '">'),
        (f'<{_DSML}parameter name="', '" string="false">'),
        f"</{_DSML}parameter>",
        f"</{_DSML}invoke>",
        literal_key_end='" string="true">',
        holds_several=True,
    )


FAMILIES = (
    Family("deepseek-v4", ("DSML", "tool_calls"), _tagged("tool_calls"), absent=("function_calls",)),
    Family("deepseek-v3.2", ("DSML", "function_calls"), _tagged("function_calls")),
    Family(
        "deepseek-r1",
        (_BEGIN, _SEPARATOR, "```json"),
        HeaderCalls(_BEGIN, ("\n```json\n", "\n```json"), _END, f"function{_SEPARATOR}", section=_SECTION),
    ),
    Family("deepseek-v3.1", (_BEGIN, _SEPARATOR), HeaderCalls(_BEGIN, (_SEPARATOR,), _END, section=_SECTION)),
)
