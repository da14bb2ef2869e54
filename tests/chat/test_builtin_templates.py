"""The built-in formats against what llama.cpp makes of the same chats (fixtures/chat)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxserver.chat.builtin_templates import DOTS1, FORMATS
from mlxserver.chat.template_detection import detect_format

RECORDED = json.loads(
    Path(__file__).parents[2].joinpath("fixtures/chat/builtin_templates.json").read_text(encoding="utf-8")
)


def test_the_names_are_llama_cpps_in_order() -> None:
    assert list(FORMATS) == list(RECORDED["formats"])


@pytest.mark.parametrize("name", FORMATS)
def test_prompts_equal_llama_cpps(name: str) -> None:
    chats = [[(role, content) for role, content in chat] for chat in RECORDED["chats"]]
    made = [FORMATS[name](chat, adds) for chat in chats for adds in (True, False)]
    assert made == RECORDED["formats"][name]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("chatml", "chatml"),
        ("... <|im_start|> ...", "chatml"),
        ("<|im_start|>...<|im_sep|>", "phi4"),
        ("mistral, whatever", "llama2"),
        ("{{ '[INST]' + content.strip() }}<<SYS>>", "llama2-sys-strip"),
        ("<|user|><|endoftext|>", "zephyr"),
        ("<|start_of_role|><tools>", "granite-4.1"),
    ],
)
def test_a_template_is_recognised_by_its_marks(source: str, name: str) -> None:
    assert detect_format(source) is FORMATS[name]


def test_one_format_has_no_name() -> None:
    assert detect_format("<|userprompt|>..<|endofuserprompt|>") is DOTS1


def test_an_unknown_template_is_not_guessed() -> None:
    assert detect_format("{{ messages }}") is None
