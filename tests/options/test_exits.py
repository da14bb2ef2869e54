from __future__ import annotations

from pathlib import Path

import pytest

from mlxserver import __version__, devices
from mlxserver.options import Exit, exits, parse_command_line, require_model


def exit_of(*argv: str) -> Exit:
    with pytest.raises(Exit) as end:
        parse_command_line(argv, {})
    return end.value


def test_version_acts_at_once() -> None:
    end = exit_of("--version", "--no-such")
    lines = end.stderr.splitlines()
    assert (end.code, end.stdout, len(lines)) == (0, "", 2)
    assert lines[0] == f"version: 10621 (mlxserver {__version__})"
    assert lines[1].startswith("built with MLX ")


def test_an_earlier_error_goes_first() -> None:
    assert exit_of("--no-such", "--version").code == 1


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: [])
    assert exit_of("--list-devices").stdout == "Available devices:\n  (none)\n"
    info = {"device_name": "Chip", "memory_size": 16 << 30, "max_recommended_working_set_size": 12 << 30}
    monkeypatch.setattr(devices, "gpus", lambda: [("Metal0", info)])
    expected = "Available devices:\n  Metal0: Chip (16384 MiB, 12288 MiB free)\n"
    assert exit_of("--list-devices").stdout == expected


def test_mlx_tells_its_gpus() -> None:
    assert isinstance(devices.gpus(), list)


def test_cached_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    revision = "0" * 40
    for repo, files in {
        "user--gguf": ["m-Q4_K_M.gguf", "m.q8_0.gguf", "mmproj-f16.gguf", "big-BF16-00001-of-00002.gguf"],
        "user--mlx": ["config.json", "model.safetensors"],
        "user--part": ["config.json"],
    }.items():
        folder = tmp_path / f"models--{repo}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(revision)
        snapshot = folder / "snapshots" / revision
        snapshot.mkdir(parents=True)
        for name in files:
            (snapshot / name).write_text("x")
    scan = huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path))
    assert exit_of("-cl").stdout == (
        "number of models in cache: 4\n"
        "   1. user/gguf:BF16\n   2. user/gguf:Q4_K_M\n   3. user/gguf:Q8_0\n   4. user/mlx\n"
    )
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path / "none"))
    assert exits.cache_list_text() == "number of models in cache: 0\n"


def test_a_model_is_required() -> None:
    for argv in (["-m", "x"], ["-hf", "a/b"]):
        require_model(parse_command_line(argv, {}))
    with pytest.raises(Exit, match="not yet implemented: serving without a model") as end:
        require_model(parse_command_line([], {}))
    assert end.value.code == 1
