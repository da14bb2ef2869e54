"""A folder with an encoder (config.json and safetensors, as transformers or MLX save them)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.quantized import quantize

from mlxserver.models.classifier import Classifier
from mlxserver.models.device import WeightPolicy, compute_dtype, float_type_name, keeps_quantized
from mlxserver.models.encoders.bert import Model as Encoder
from mlxserver.models.encoders.bert import ModelArgs
from mlxserver.models.errors import ModelError
from mlxserver.models.model import Model, ModelInfo, piece_text
from mlxserver.models.parameters import n_bytes, n_parameters

Config = Mapping[str, Any]
Weights = dict[str, mx.array]

MODEL_TYPES = ("bert", "camembert", "roberta", "xlm-roberta")

_TOP = {
    "embeddings.word_embeddings": "embed_tokens",
    "embeddings.token_type_embeddings": "embed_types",
    "embeddings.position_embeddings": "embed_positions",
    "embeddings.LayerNorm": "embed_norm",
}
_LAYER = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.o_proj",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
    "output.LayerNorm": "output_norm",
}
_HEAD = {
    "pooler.dense": "dense",
    "classifier.dense": "dense",
    "classifier.out_proj": "out_proj",
    "classifier": "out_proj",
}
_POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_LAYER_NAME = re.compile(r"encoder\.layer\.(\d+)\.(.+)")
_ENDINGS = {"gamma": "weight", "beta": "bias"}
_LOAD_ERRORS = (ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError)


def load_encoder(
    path: Path, config: Config, name: str, dtype: str, weights: WeightPolicy
) -> tuple[Model, list[str]]:
    """As ``models.folder.load_folder``, for a ``model_type`` of MODEL_TYPES."""
    from mlxserver.models.tokenizer import from_folder

    try:
        module, classifier, own = _load(path, config, dtype, weights)
    except _LOAD_ERRORS as error:
        raise ModelError(f"{path}: {' '.join(str(error).split())[:300] or type(error).__name__}") from error
    tokenizer = from_folder(path)
    info = ModelInfo(
        path=name,
        architecture=str(config["model_type"]),
        n_vocab=module.args.vocab_size,
        n_ctx_train=module.args.max_position_embeddings,
        n_embd=module.args.hidden_size,
        n_params=n_parameters(module),
        size=n_bytes(module),
        ftype=own,
        bos_text=piece_text(tokenizer, tokenizer.bos_id),
        eos_text=piece_text(tokenizer, tokenizer.eos_id),
        pooling="rank" if classifier else _pooling(path),
    )
    return Model(module, tokenizer, info, classifier), []


def _load(
    path: Path, config: Config, dtype: str, policy: WeightPolicy
) -> tuple[Encoder, Classifier | None, str]:
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{path}: there are no safetensors")
    trunk, head = _sorted_out(_read(files), config)
    own = trunk["embed_norm.weight"].dtype
    kind = compute_dtype(dtype, own)
    module = Encoder(ModelArgs.from_dict(_arguments(config, trunk)))
    if quantization := config.get("quantization"):
        _quantize(module, trunk, quantization)
    module.load_weights([(f"model.{name}", value) for name, value in trunk.items()])
    if quantization and not keeps_quantized(policy):
        from mlx_lm.utils import dequantize_model

        dequantize_model(module)
    for part in (module, classifier := Classifier(head) if _has_head(head, config) else None):
        if part is not None:
            part.set_dtype(kind)
            part.eval()
            mx.eval(part.parameters())  # type: ignore[no-untyped-call]
    return module, classifier, f"MLX {quantization['bits']}-bit" if quantization else float_type_name(own)


def _read(files: Iterable[Path]) -> Weights:
    weights: Weights = {}
    for file in files:
        weights.update(mx.load(str(file)))  # type: ignore[arg-type]
    return weights


def _arguments(config: Config, trunk: Weights) -> dict[str, Any]:
    """What the positions' matrix has lost of its rows is not announced either."""
    types = trunk.get("embed_types.weight")
    return {
        **config,
        "max_position_embeddings": trunk["embed_positions.weight"].shape[0],
        "type_vocab_size": 0 if types is None else types.shape[0],
    }


def _sorted_out(weights: Weights, config: Config) -> tuple[Weights, Weights]:
    """(trunk, head), each by our names; what serves other purposes than these is left out."""
    trunk: Weights = {}
    head: Weights = {}
    for name, value in weights.items():
        stem, _, ending = re.sub(r"^(bert|roberta)\.", "", name).rpartition(".")
        ending = _ENDINGS.get(ending, ending)
        layer = _LAYER_NAME.fullmatch(stem)
        if layer and layer[2] in _LAYER:
            trunk[f"layers.{layer[1]}.{_LAYER[layer[2]]}.{ending}"] = value
        elif stem in _TOP:
            trunk[f"{_TOP[stem]}.{ending}"] = value
        elif stem in _HEAD:
            head[f"{_HEAD[stem]}.{ending}"] = value
    if config["model_type"] != "bert" and isinstance(config.get("pad_token_id"), int):
        # positions are counted from behind the padding token's number
        for path in [path for path in trunk if path.startswith("embed_positions.")]:
            trunk[path] = trunk[path][config["pad_token_id"] + 1 :]
    return trunk, head


def _has_head(head: Weights, config: Config) -> bool:
    """A plain BERT has a pooler too, which no embedding is made with."""
    kinds = config.get("architectures") or []
    return "out_proj.weight" in head and any(str(kind).endswith("SequenceClassification") for kind in kinds)


def _quantize(module: Encoder, trunk: Weights, quantization: Mapping[str, Any]) -> None:
    quantize(
        module,
        group_size=quantization["group_size"],
        bits=quantization["bits"],
        class_predicate=lambda name, part: (
            f"{name.removeprefix('model.')}.scales" in trunk and hasattr(part, "to_quantized")
        ),
    )


def _pooling(path: Path) -> str:
    """What sentence-transformers' modules say; empty where they say nothing that is known here."""
    try:
        for entry in json.loads((path / "modules.json").read_text("utf-8")):
            if entry["type"].endswith("Pooling"):
                modes = json.loads((path / entry["path"] / "config.json").read_text("utf-8"))
                return next((name for mode, name in _POOLINGS.items() if modes.get(mode)), "")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{path}: the description of the pooling cannot be read: {error}") from error
    return ""
