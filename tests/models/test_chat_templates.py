from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxserver.models.chat_templates import chat_templates
from mlxserver.models.errors import ModelError


def write(path: Path, **config: object) -> None:
    path.write_text(json.dumps(config))


def test_none(tmp_path: Path) -> None:
    assert chat_templates(tmp_path) == {}


def test_a_text_or_a_list_of_named_ones(tmp_path: Path) -> None:
    write(tmp_path / "tokenizer_config.json", chat_template="one")
    assert chat_templates(tmp_path) == {"default": "one"}
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}, {"name": "broken"}]
    write(tmp_path / "tokenizer_config.json", chat_template=named)
    assert chat_templates(tmp_path) == {"default": "a", "tool_use": "b"}


def test_files_of_their_own_go_first(tmp_path: Path) -> None:
    write(tmp_path / "tokenizer_config.json", chat_template="config")
    write(tmp_path / "chat_template.json", chat_template="json")
    assert chat_templates(tmp_path) == {"default": "json"}
    (tmp_path / "chat_template.jinja").write_text("jinja")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert chat_templates(tmp_path) == {"default": "jinja", "tool_use": "tools"}


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match="the chat template cannot be read"):
        chat_templates(tmp_path)
