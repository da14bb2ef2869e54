"""SmolLM2's GGUF file as an MLX folder in 32-bit floats that mlx_lm.server loads too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import tokenizers
from mlx.utils import tree_flatten
from tokenizers import decoders, models, pre_tokenizers

from mlxserver.models.gguf.architectures import lookup, model_config
from mlxserver.models.gguf.model_file import ModelFile, open_model
from mlxserver.models.load import ModelSource, load_model

CONTROL = 3
"""The token type of special tokens."""


def convert(source: Path, target: Path) -> None:
    """Does nothing where the folder is complete already (its config.json is written last)."""
    if (target / "config.json").exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    model, _ = load_model(ModelSource(path=str(source)), dtype="float32", weights="dequantize")
    weights = dict(tree_flatten(model.module.parameters()))
    mx.save_safetensors(str(target / "model.safetensors"), weights, metadata={"format": "mlx"})
    file = open_model(source)
    write_tokenizer(file, target)
    config = {**model_config(file, lookup(file)), "eos_token_id": model.tokenizer.eos_id}
    (target / "config.json").write_text(json.dumps(config, indent=1))


def write_tokenizer(file: ModelFile, target: Path) -> None:
    """A byte-level BPE whose digits stand alone (llama.cpp's pre-tokenizer "smollm")."""
    meta: dict[str, Any] = dict(file.metadata)
    texts = [text if isinstance(text, str) else text.decode() for text in meta["tokenizer.ggml.tokens"]]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    vocab = {text: token for token, text in enumerate(texts)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = meta["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens([t for t, kind in zip(texts, types, strict=True) if kind == CONTROL])
    tokenizer.save(str(target / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": texts[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": texts[meta["tokenizer.ggml.eos_token_id"]],
        "chat_template": meta["tokenizer.chat_template"],
    }
    (target / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
