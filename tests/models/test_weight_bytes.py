"""What weights will take, told before they are loaded: what loading them then takes, or less."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType as Type

from mlxserver.models.errors import ModelError
from mlxserver.models.load import ModelSource, load_model
from mlxserver.models.memory_limit import MIB, MemoryLimit
from mlxserver.models.weight_bytes import check_weights, weight_bytes
from tests.models import gguf_files, tiny, tiny_folder

NOTHING = MemoryLimit(1, is_given=True)


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.Q4_1, Type.Q8_0])
@pytest.mark.parametrize("dtype", ["auto", "float16", "float32"])
def test_of_a_gguf_file(kind: Type, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    gguf_files.write(path, gguf_files.KINDS["llama"], kind)
    size = load_model(ModelSource(path=str(path)), dtype, "dequantize")[0].info.size
    assert weight_bytes(path, dtype, "dequantize") == size


def test_weights_that_stay_quantised(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    gguf_files.write(path, gguf_files.KINDS["llama"], Type.Q8_0)
    size = load_model(ModelSource(path=str(path)), "float32", "keep")[0].info.size
    assert 0.5 * size < weight_bytes(path, "float32", "keep") <= 1.05 * size


@pytest.mark.parametrize(("kind", "factor"), [("float16", 2), ("bfloat16", 2), ("float32", 1), (None, 1)])
def test_of_a_folder(kind: str | None, factor: int, tmp_path: Path) -> None:
    folder = tiny_folder.write(tmp_path, tiny.llama(), torch_dtype=kind)
    size = (folder / "model.safetensors").stat().st_size
    assert weight_bytes(folder, "float32", "auto") == size * factor


def test_what_is_no_model_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF but no more")
    assert weight_bytes(tmp_path / "x.gguf", "auto", "auto") == 0
    assert weight_bytes(tmp_path / "absent", "auto", "auto") == 0
    assert weight_bytes(tmp_path, "auto", "auto") == 0


def test_headers_are_not_read_where_everything_fits_anyway(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    gguf_files.write(path, gguf_files.KINDS["llama"])
    asked: list[int] = []
    assert weight_bytes(path, "auto", "auto", worth_it=lambda n: bool(asked.append(n))) == 0
    assert asked == [16 * path.stat().st_size]


def test_refusals_and_warnings(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    gguf_files.write(path, gguf_files.KINDS["llama"])
    with pytest.raises(ModelError, match=r"model.gguf: the weights take 0 MiB, --memory-limit is 0 MiB"):
        check_weights(path, "auto", "auto", NOTHING, None)
    with pytest.raises(ModelError, match="0 MiB are free: a smaller model"):
        check_weights(path, "auto", "auto", MemoryLimit(1), 2)
    for most in (None, 2**40):  # it may be slow, but it may do: whoever starts it is to decide
        warning = check_weights(path, "auto", "auto", MemoryLimit(1), most)
        assert warning is not None and "the machine can spare 0 MiB" in warning
    for limit in (MemoryLimit(), MemoryLimit(100 * MIB), MemoryLimit(100 * MIB, is_given=True)):
        assert check_weights(path, "auto", "auto", limit, 2**40) is None
