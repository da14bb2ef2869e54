"""Damaged and malicious files are refused with one line, or load to something that can be used."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxserver.models.lora.adapter import Adapter, AdapterError
from mlxserver.models.lora.load import load_adapter
from mlxserver.models.lora.loaded import LoadedAdapters
from mlxserver.models.model import Model
from tests.models import tiny
from tests.models.gguf_files import KINDS
from tests.models.lora.adapters import as_model, gguf_tensors, matrices, write_gguf, write_mlx, write_peft

PATHS = ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"]


@pytest.fixture(scope="module")
def model() -> Model:
    return as_model(tiny.llama())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def write_all(folder: Path, model: Model) -> dict[str, tuple[Path, Path]]:
    """Format -> what is loaded, and the file of it that is damaged."""
    made = matrices(model.module, 1, 2, PATHS)
    keys = {"adapter__alora__invocation_tokens": [1, 2], "adapter__lora__task_name": "task"}
    gguf = write_gguf(folder / "lora.gguf", gguf_tensors(KINDS["llama"], model.module, made), **keys)
    mlx, peft = (
        write_mlx(folder / "mlx", made),
        write_peft(folder / "peft", made, rank_pattern={"up_proj": 2}),
    )
    return {
        "gguf": (gguf, gguf),
        "mlx": (mlx, mlx / "adapters.safetensors"),
        "mlx settings": (mlx, mlx / "adapter_config.json"),
        "peft": (peft, peft / "adapter_model.safetensors"),
        "peft settings": (peft, peft / "adapter_config.json"),
    }


FORMATS = ("gguf", "mlx", "mlx settings", "peft", "peft settings")


def attempt(path: Path, model: Model) -> Adapter | None:
    """Whatever loads must run. Any other error than AdapterError fails the test."""
    try:
        adapter = load_adapter(str(path), model)
    except AdapterError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return None
    loaded = LoadedAdapters(model.module)
    loaded.add(adapter)
    loaded.use([((adapter.digest, 1.0),)])
    mx.eval(model.module(mx.array([[1, 2]])))
    loaded.remove(adapter.digest)
    return adapter


def boundaries(content: bytes) -> Iterator[int]:
    """Every length up to the end of the header, and some after it."""
    yield from range(min(len(content), 1500))
    yield from range(1500, len(content), 97)
    yield from (len(content) - 1, len(content) - 4)


@pytest.mark.parametrize("name", FORMATS)
def test_files_cut_off_anywhere(name: str, model: Model, folder: Path) -> None:
    path, file = write_all(folder, model)[name]
    content = file.read_bytes()
    assert attempt(path, model) is not None
    for length in boundaries(content):
        file.write_bytes(content[:length])
        assert attempt(path, model) is None, length


@pytest.mark.parametrize("name", FORMATS)
def test_flipped_bits(name: str, model: Model, folder: Path) -> None:
    path, file = write_all(folder, model)[name]
    content = file.read_bytes()
    chance = random.Random(7)
    whole = attempt(path, model)
    assert whole is not None
    outcomes = []
    for _ in range(600):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 1, 1, 4))):
            damaged[chance.randrange(min(len(content), 1200))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        outcomes.append(attempt(path, model))
    assert sum(outcome is None for outcome in outcomes) > 80


@given(tail=st.binary(max_size=400))
@settings(max_examples=300)
def test_random_bytes_behind_a_beginning(tail: bytes, model: Model, folder: Path) -> None:
    path = folder / "random.gguf"
    for head in (b"", b"GGUF", b"GGUF\3\0\0\0", b"GGUF\3\0\0\0" + struct.pack("<QQ", 1, 0)):
        path.write_bytes(head + tail)
        assert attempt(path, model) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PEFT_KEYS = (
    "r lora_alpha rank_pattern alpha_pattern use_rslora alora_invocation_tokens bias init_lora_weights"
)
PEFT_KEYS += " peft_type target_modules modules_to_save"


@given(changes=st.dictionaries(st.sampled_from(PEFT_KEYS.split()), JSON, max_size=3))
@settings(max_examples=300)
def test_settings_of_any_type(changes: dict[str, Any], model: Model, folder: Path) -> None:
    path, file = write_all(folder, model)["peft settings"]
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    attempt(path, model)
    path, file = write_all(folder, model)["mlx settings"]
    parameters = {"rank": 2, "scale": 1.0, **{key[:4]: value for key, value in changes.items()}}
    values = list(changes.values()) or [None]
    parameters |= {"scale": values[0], "rank": values[-1]}
    file.write_text(json.dumps({"lora_parameters": parameters}))
    attempt(path, model)


def header(n_tensors: int = 0, n_keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes, shape: list[int], kind: int, offset: int) -> bytes:
    dims = b"".join(struct.pack("<Q", size) for size in shape)
    return text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, offset)


IS_LORA = b"".join(
    text(key) + struct.pack("<I", 8) + text(value)
    for key, value in [
        (b"general.type", b"adapter"),
        (b"adapter.type", b"lora"),
        (b"general.architecture", b"llama"),
    ]
)
A, B = b"blk.0.attn_q.weight.lora_a", b"blk.0.attn_q.weight.lora_b"
HUGE = 2**63 - 1

LYING: dict[str, bytes] = {
    "tensors": header(n_tensors=HUGE, n_keys=3) + IS_LORA,
    "keys": header(n_keys=HUGE) + IS_LORA,
    "length of a text": header(n_keys=1) + struct.pack("<Q", HUGE),
    "length of an array": header(n_keys=1) + text(b"x") + struct.pack("<IIQ", 9, 4, HUGE),
    "array of arrays": header(n_keys=1) + text(b"x") + struct.pack("<IIQ", 9, 9, 1),
    "offset": header(2, 3) + IS_LORA + tensor(A, [32, 4], 0, 2**62) + tensor(B, [4, 32], 0, 0) + bytes(4096),
    "shape": header(2, 3) + IS_LORA + tensor(A, [HUGE, HUGE], 0, 0) + tensor(B, [4, 32], 0, 0) + bytes(4096),
    "rank": header(2, 3)
    + IS_LORA
    + tensor(A, [32, 2**40], 0, 0)
    + tensor(B, [2**40, 32], 0, 0)
    + bytes(4096),
    "dimensions": header(2, 3)
    + IS_LORA
    + tensor(A, [1] * 200, 0, 0)
    + tensor(B, [4, 32], 0, 0)
    + bytes(4096),
    "type": header(2, 3) + IS_LORA + tensor(A, [32, 4], 77, 0) + tensor(B, [4, 32], 0, 0) + bytes(4096),
    "twice": header(2, 3) + IS_LORA + tensor(A, [32, 4], 0, 0) + tensor(A, [32, 4], 0, 0) + bytes(4096),
    "integers": header(2, 3) + IS_LORA + tensor(A, [32, 4], 26, 0) + tensor(B, [4, 32], 26, 0) + bytes(4096),
}


@pytest.mark.parametrize("name", LYING)
def test_headers_that_lie(name: str, model: Model, folder: Path) -> None:
    (folder / "lying.gguf").write_bytes(LYING[name])
    assert attempt(folder / "lying.gguf", model) is None


def test_the_bytes_of_a_lying_header_can_be_good(model: Model, folder: Path) -> None:
    """What the cases above are made of loads when nothing in it is a lie."""
    good = header(2, 3) + IS_LORA + tensor(A, [32, 4], 0, 0) + tensor(B, [4, 32], 0, 512) + bytes(4096)
    (folder / "good.gguf").write_bytes(good)
    assert attempt(folder / "good.gguf", model) is not None


SAFETENSORS: dict[str, Callable[[], bytes]] = {
    "header length": lambda: struct.pack("<Q", HUGE),
    "deep": lambda: struct.pack("<Q", 10**5) + b"[" * 10**5,
    "offsets": lambda: _safetensors({"x.lora_a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}}),
    "overlap": lambda: _safetensors(
        {n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in ("x.lora_a", "x.lora_b")}
    ),
    "shape": lambda: _safetensors({"x.lora_a": {"dtype": "F32", "shape": [HUGE, 4], "data_offsets": [0, 8]}}),
    "type": lambda: _safetensors({"x.lora_a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}),
    "integers": lambda: _safetensors({"x.lora_a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}),
    "scalar": lambda: _safetensors(
        {
            f"{PATHS[0]}.lora_{s}": {"dtype": "F32", "shape": [], "data_offsets": [i, i + 4]}
            for s, i in (("a", 0), ("b", 4))
        }
    ),
}


def _safetensors(entries: dict[str, Any]) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors_that_lie(name: str, model: Model, folder: Path) -> None:
    for format in ("mlx", "peft"):
        path, file = write_all(folder, model)[format]
        file.write_bytes(SAFETENSORS[name]())
        assert attempt(path, model) is None
