"""Encoders as llama.cpp's converter would write them: from a Hugging Face folder, or tiny and random."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
CONTROL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    *CONTROL,
    *"abcdefghijklmnopqrstuvwxyz0123456789.,!?'-",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"),
    *("hello", "world", "the", "##ing", "##ed", "sun", "rise", "##rise", "cafe", "un", "##able"),
)
HIDDEN, LAYERS, HEADS, INNER, CONTEXT = 32, 2, 4, 48, 64

_NAMED = {"bos": "[CLS]", "eos": "[SEP]", "seperator": "[SEP]", "unknown": "[UNK]", "padding": "[PAD]"}
Tensors = dict[str, np.ndarray[Any, Any]]


def convert_folder(folder: Path, path: Path) -> None:
    """Writes the BERT model in a Hugging Face folder as a GGUF file of 32-bit floats."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    weights = mx.load(str(folder / "model.safetensors"))
    names = gguf.get_tensor_name_map(MODEL_ARCH.BERT, config["num_hidden_layers"])
    tensors = {}
    for name, value in weights.items():
        name = name.removeprefix("bert.")
        if name != "embeddings.position_ids" and not name.startswith("pooler."):
            tensors[names.get_name(name, (".weight", ".bias"))] = np.array(value.astype(mx.float32))
    vocabulary = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    writer = gguf.GGUFWriter(path, "bert")
    _write_keys(writer, config, pooling=1)
    _write_vocabulary(writer, sorted(vocabulary, key=vocabulary.__getitem__))
    gguf.SpecialVocab(folder, n_vocab=len(vocabulary)).add_to_gguf(writer)
    _finish(writer, tensors)


def tiny_config(**changes: Any) -> dict[str, Any]:
    """A config.json of BERT."""
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": CONTEXT,
        "type_vocab_size": 2,
        "vocab_size": len(WORDS),
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "pad_token_id": 0,
        **changes,
    }


def tiny_tensors(arch: MODEL_ARCH = MODEL_ARCH.BERT, head: str = "", seed: int = 0) -> Tensors:
    """Random weights by their GGUF names. ``head``: ``dense``, ``out`` or both, for a classifier."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return random.normal(0, 1.5 / columns**0.5, (rows, columns)).astype(np.float32)

    def vector(size: int, mean: float = 0.0) -> np.ndarray[Any, Any]:
        return (mean + random.normal(0, 0.2, size)).astype(np.float32)

    def norm(name: str) -> Tensors:
        return {f"{name}.weight": vector(HIDDEN, 1.0), f"{name}.bias": vector(HIDDEN)}

    nomic = arch == MODEL_ARCH.NOMIC_BERT
    tensors = {
        "token_embd.weight": 5 * matrix(len(WORDS), HIDDEN),
        "token_types.weight": matrix(2, HIDDEN),
        **norm("token_embd_norm"),
    }
    if not nomic:
        tensors["position_embd.weight"] = 5 * matrix(CONTEXT, HIDDEN)
    for number in range(LAYERS):
        parts = {"attn_output": (HIDDEN, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER)}
        if nomic:
            parts |= {"attn_qkv": (3 * HIDDEN, HIDDEN), "ffn_gate": (INNER, HIDDEN)}
        else:
            parts |= dict.fromkeys(("attn_q", "attn_k", "attn_v"), (HIDDEN, HIDDEN))
        for part, shape in parts.items():
            tensors[f"blk.{number}.{part}.weight"] = matrix(*shape)
            if not nomic:
                tensors[f"blk.{number}.{part}.bias"] = vector(shape[0])
        tensors |= norm(f"blk.{number}.attn_output_norm") | norm(f"blk.{number}.layer_output_norm")
    if "dense" in head:
        tensors |= {"cls.weight": matrix(HIDDEN, HIDDEN), "cls.bias": vector(HIDDEN)}
    if "out" in head:
        tensors |= {"cls.output.weight": 3 * matrix(1, HIDDEN), "cls.output.bias": vector(1)}
    return tensors


def write_tiny(
    path: Path, arch: MODEL_ARCH = MODEL_ARCH.BERT, head: str = "", pooling: int | None = None
) -> Path:
    """A tiny encoder as a GGUF file."""
    writer = gguf.GGUFWriter(path, MODEL_ARCH_NAMES[arch])
    _write_keys(writer, tiny_config(), pooling=pooling)
    if arch == MODEL_ARCH.NOMIC_BERT:
        writer.add_rope_freq_base(1000.0)
    if "out" in head:
        writer.add_classifier_output_labels(["score"])
    _write_vocabulary(writer, list(WORDS))
    for name, word in _NAMED.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", WORDS.index(word))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_sep_token(False)
    _finish(writer, tiny_tensors(arch, head))
    return path


_HUGGING_FACE = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}


def write_tiny_folder(path: Path, head: str = "", pooling: str = "", **config: Any) -> Path:
    """The same BERT model as a Hugging Face folder; its head is a BertForSequenceClassification's."""
    path.mkdir(exist_ok=True)
    weights = {_hugging_face(name, head): mx.array(v) for name, v in tiny_tensors(head=head).items()}
    mx.save_safetensors(str(path / "model.safetensors"), weights)
    names = {"architectures": ["BertForSequenceClassification"]} if head else {}
    write_json(path / "config.json", tiny_config(**names, **config))
    write_json(path / "tokenizer.json", _tokenizer_json())
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    write_json(path / "tokenizer_config.json", named)
    if pooling:
        (path / "1_Pooling").mkdir(exist_ok=True)
        write_json(
            path / "modules.json", [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
        )
        write_json(path / "1_Pooling" / "config.json", {f"pooling_mode_{pooling}": True})
    return path


def _hugging_face(name: str, head: str) -> str:
    stem, _, suffix = name.rpartition(".")
    prefix = "bert." if head else ""
    if stem.startswith("cls"):
        return f"{'bert.pooler.dense' if stem == 'cls' else 'classifier'}.{suffix}"
    if stem.startswith("blk."):
        _, number, part = stem.split(".")
        return f"{prefix}encoder.layer.{number}.{_HUGGING_FACE[part]}.{suffix}"
    return f"{prefix}{_HUGGING_FACE[stem]}.{suffix}"


def _tokenizer_json() -> dict[str, Any]:
    added = [
        {
            "id": WORDS.index(word),
            "content": word,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for word in CONTROL
    ]
    return {
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": None,
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_special("[CLS]"), _sequence("A"), _special("[SEP]")],
            "pair": [
                _special("[CLS]"),
                *(_sequence("A"), _special("[SEP]")),
                *(_sequence("B"), _special("[SEP]")),
            ],
            "special_tokens": {
                word: {"id": word, "ids": [WORDS.index(word)], "tokens": [word]}
                for word in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: token for token, word in enumerate(WORDS)},
        },
    }


def _special(word: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": word, "type_id": 0}}


def _sequence(name: str) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": 0}}


def _write_keys(writer: gguf.GGUFWriter, config: Mapping[str, Any], pooling: int | None) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_file_type(0)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))


def _write_vocabulary(writer: gguf.GGUFWriter, words: list[str]) -> None:
    """Pieces within a word lose their ``##``, words get a visible space instead."""
    types = [3 if word in CONTROL else 1 for word in words]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([_spelled(word, kind) for word, kind in zip(words, types, strict=True)])
    writer.add_token_types(types)


def _spelled(word: str, kind: int) -> str:
    if kind == 3:
        return word
    return word[2:] if word.startswith("##") else SPACE + word


def _finish(writer: gguf.GGUFWriter, tensors: Tensors) -> None:
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), "utf-8")
