"""Functionary 3.1: ``<function=NAME>{...}</function>``."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.header_calls import HeaderCalls

FAMILIES = (
    Family(
        "functionary-3.1",
        ("<function=", "</function>"),
        HeaderCalls("<function=", (">",), "</function>"),
        absent=("<parameter=", "<function name="),
    ),
)
