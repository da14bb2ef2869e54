"""The chat templates of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlxserver.models.errors import ModelError

_FOLDER = "additional_chat_templates"


def chat_templates(path: Path) -> dict[str, str]:
    """Name → template: ``default`` and possibly ``tool_use`` and others.

    A file of its own (chat_template.jinja, then chat_template.json) goes before tokenizer_config.json.
    Raises ModelError for a file that cannot be read.
    """
    try:
        templates = _of_config(path / "tokenizer_config.json")
        templates.update(_of_config(path / "chat_template.json"))
        for file in (path / "chat_template.jinja", *sorted((path / _FOLDER).glob("*.jinja"))):
            if file.exists():
                name = "default" if file.parent == path else file.stem
                templates[name] = file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: the chat template cannot be read: {error}") from error
    return templates


def _of_config(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    config = json.loads(path.read_text("utf-8"))
    return _named(config.get("chat_template")) if isinstance(config, dict) else {}


def _named(value: Any) -> dict[str, str]:
    """One text, or a list of objects with ``name`` and ``template``."""
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else []
    return {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    }
