"""Llama 3: a bare JSON object with ``parameters``."""

from mlxserver.chat.formats.bare_calls import BareCalls
from mlxserver.chat.formats.family import Family

FAMILIES = (
    Family(
        "llama3",
        ("<|start_header_id|>", "ipython", '"parameters": '),
        BareCalls("name", "parameters"),
        absent=("<tool_call>", "<function=", "functools["),
    ),
)
