"""The devices that MLX can compute on, for ``--list-devices``."""

from __future__ import annotations

from typing import Any

MIB = 1024 * 1024


def gpus() -> list[tuple[str, dict[str, Any]]]:
    """(name, properties) of every GPU that MLX sees."""
    import mlx.core as mx

    kind = "Metal" if mx.metal.is_available() else "CUDA"
    devices = [mx.Device(mx.gpu, index) for index in range(mx.device_count(mx.gpu))]
    return [(f"{kind}{index}", dict(mx.device_info(device))) for index, device in enumerate(devices)]


def describe(name: str, info: dict[str, Any]) -> str:
    """One line in llama-server's form; what MLX advises to use at most counts as free."""
    total = int(info.get("memory_size", info.get("total_memory", 0)))
    free = int(info.get("max_recommended_working_set_size", info.get("free_memory", total)))
    return f"  {name}: {info.get('device_name', name)} ({total // MIB} MiB, {free // MIB} MiB free)\n"


def list_devices() -> str:
    """The text of ``--list-devices``: every device but the CPU."""
    lines = [describe(name, info) for name, info in gpus()]
    return "Available devices:\n" + ("".join(lines) or "  (none)\n")
