from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.model_file import open_model, split_name


def write_parts(folder: Path, count: int, announced: int | None = None) -> Path:
    for number in range(count):
        writer = gguf.GGUFWriter(folder / split_name("m", number + 1, count), "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", count if announced is None else announced)
        writer.add_tensor(f"t{number}", np.full((2, 4), number, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return folder / split_name("m", 1, count)


def test_all_parts_are_read(tmp_path: Path) -> None:
    file = open_model(write_parts(tmp_path, 3))
    assert file.architecture == "llama"
    assert [float(file.tensors[f"t{n}"].data.view(np.float32)[0, 0]) for n in range(3)] == [0.0, 1.0, 2.0]


def test_a_missing_part(tmp_path: Path) -> None:
    first = write_parts(tmp_path, 3)
    (tmp_path / split_name("m", 2, 3)).unlink()
    with pytest.raises(ModelError, match="m-00002-of-00003.gguf: No such file"):
        open_model(first)


def test_a_later_part_is_no_model(tmp_path: Path) -> None:
    write_parts(tmp_path, 2)
    with pytest.raises(ModelError, match="part 1 of a split model; name the first part"):
        open_model(tmp_path / split_name("m", 2, 2))


def test_a_renamed_first_part(tmp_path: Path) -> None:
    first = write_parts(tmp_path, 2).rename(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match="must be named NAME-00001-of-00002.gguf"):
        open_model(first)


def test_parts_of_another_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the parts hold 2 tensors, the first one speaks of 5"):
        open_model(write_parts(tmp_path, 2, announced=5))


def test_a_file_without_architecture(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF\3\0\0\0" + bytes(16))
    with pytest.raises(ModelError, match="does not name its architecture"):
        _ = open_model(tmp_path / "m.gguf").architecture
