"""A tiny model as an MLX folder: ``python -m tests.models.tiny_folder KIND FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from tests.models import tiny


def write(path: Path, module: nn.Module, **config: Any) -> Path:
    """The module with a vocabulary in which a token is a byte; ``config`` adds to config.json."""
    path.mkdir(exist_ok=True, parents=True)
    settings = {**vars(module.args), "eos_token_id": 255, **config}
    (path / "config.json").write_text(json.dumps(settings))
    mx.save_safetensors(str(path / "model.safetensors"), dict(tree_flatten(module.parameters())))
    _write_tokenizer(path)
    return path


def _write_tokenizer(path: Path) -> None:
    vocab = {char: n for n, char in enumerate(sorted(ByteLevel.alphabet()))}
    vocab["<|end|>"] = vocab.pop(max(vocab, key=lambda char: vocab[char]))
    tokenizer = Tokenizer(BPE(vocab, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "chat_template": "{{ messages }}"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    write(Path(sys.argv[2]), tiny.ALL[sys.argv[1]]())
