"""JSON schema → grammar."""

from __future__ import annotations

from mlxserver.sampling.params import Grammar


def schema_grammar(text: str) -> Grammar:
    return Grammar("lark", "%llguidance {}\nstart: %json " + text)
