"""The tensors of a GGUF file that score a query and a document."""

from __future__ import annotations

import mlx.core as mx

from mlxserver.models.classifier import Classifier
from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.convert import float_array, unpack
from mlxserver.models.gguf.model_file import ModelFile

_NAMES = {"cls": "dense", "cls.output": "out_proj"}
TENSORS = {f"{name}.{part}": f"{ours}.{part}" for name, ours in _NAMES.items() for part in ("weight", "bias")}
"""GGUF name → the parameter of a Classifier."""


def load_classifier(file: ModelFile, dtype: mx.Dtype) -> Classifier | None:
    """None where the file has none. Qwen3's rerankers read the last token and give shares of 1."""
    weights = {}
    for name, path in TENSORS.items():
        tensor = file.tensors.get(name)
        if tensor is not None:
            values = float_array(tensor, unpack(tensor, tensor.data))
            weights[path] = values.reshape(tensor.shape).astype(dtype)
    if not any(path.endswith(".weight") for path in weights):
        return None
    is_qwen3 = file.architecture == "qwen3"
    try:
        classifier = Classifier(weights, reads_last=is_qwen3, softmax=is_qwen3)
    except ValueError as error:
        raise ModelError(f"{file.path}: the classifier's tensors do not fit together: {error}") from error
    mx.eval(classifier.parameters())  # type: ignore[no-untyped-call]
    return classifier
