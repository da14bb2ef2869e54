"""The command's own options; none of them is llama-server's by more than its name."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.options import Exit

COMPARED_KV = ("f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


@dataclass(frozen=True, slots=True)
class Option:
    """``read`` makes the value of a text; without it the option is a flag."""

    spellings: tuple[str, ...]
    hint: str
    read: Callable[[str], Any] | None
    default: Any
    description: str


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return read


def _many(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(read(part) for part in text.split(",") if part)


def _count(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _bound(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


_counts = _many(_count)
_kv_type = _one_of(*KV_TYPES)

OPTIONS = (
    Option(("-m", "--model"), "PATH", str, "", "a GGUF file or an MLX folder"),
    Option(("-hf", "--hf-repo"), "REPO", str, "", "instead: a repository of the Hugging Face hub"),
    Option(("--dtype",), "TYPE", _one_of("auto", "float32", "float16", "bfloat16"), "auto", "compute type"),
    Option(
        ("--weights",),
        "HOW",
        _one_of("auto", "keep", "dequantize"),
        "auto",
        "what becomes of quantised weights",
    ),
    Option(("-ctk", "--cache-type-k"), "TYPE", _kv_type, "f32", "KV type of the keys in the cold trace"),
    Option(("-ctv", "--cache-type-v"), "TYPE", _kv_type, "f32", "KV type of the values in the cold trace"),
    Option(("-ub", "--ubatch-size"), "N", _count, 512, "tokens a prompt chunk of the cold trace"),
    Option(("--swa-full",), "", None, False, "keep all tokens of sliding windows: they can be moved"),
    Option(("--text",), "FILE", Path, None, "the text (default: one that comes with the package)"),
    Option(("-n", "--n-tokens"), "N", _count, 640, "tokens of the text at most"),
    Option(("--chunks",), "N,N", _counts, (1, 7, 64, 256), "sizes of other prompt chunks"),
    Option(("--cuts",), "N,N", _counts, (), "where prefix hits end (default: 1, quarters, 8 before the end)"),
    Option(("--batch",), "N,N", _counts, (1, 2, 4, 8), "batch widths"),
    Option(("--n-decode",), "N", _count, 64, "tokens that are decoded in each batch width"),
    Option(("--kv-types",), "T,T", _many(_kv_type), COMPARED_KV, "KV types to hold against the base"),
    Option(("--gap",), "NATS", _bound, None, "top-2 gap of a decided position (default: by compute type)"),
    Option(("--bound",), "NATS", _bound, None, "largest Δ of an exact path (default: by compute type)"),
    Option(("--bound-kl",), "NATS", _bound, 1.0, "mean KL divergence that a bounded path may have"),
    Option(("--json",), "FILE", Path, None, "write everything, position by position, as JSON"),
    Option(("--plot",), "FILE", Path, None, "draw the differences along the text (PNG)"),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Exit(1, stderr=f"error: {message}\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise Exit(status, stderr=message or "")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Raises ``Exit`` for ``--help`` and, with one line, for what cannot be meant."""
    parser = _Parser(
        prog="mlxserver validate",
        description="Holds reused, moved, stored, batched and quantised state against a cold run.",
        epilog="Exit code 1: a path that must be exact is not, or a bounded one is out of its bound.",
        allow_abbrev=False,
    )
    for option in OPTIONS:
        default = "" if option.default in (None, (), "", False) else f" (default: {_shown(option.default)})"
        text = option.description + default
        if option.read is None:
            parser.add_argument(*option.spellings, action="store_true", help=text)
        else:
            parser.add_argument(
                *option.spellings, type=option.read, default=option.default, metavar=option.hint, help=text
            )
    options = parser.parse_args(list(argv))
    _check(options)
    return options


def text_of(path: Path | None) -> str:
    """Raises ``Exit`` where the file cannot be read."""
    if path is None:
        return resources.files("mlxserver.validate").joinpath("text.txt").read_text(encoding="utf-8")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else _reason(error)
        raise Exit(1, stderr=f"error: --text {path}: {reason}\n") from None


def _check(options: argparse.Namespace) -> None:
    """What would only be noticed after the work."""
    if bool(options.model) == bool(options.hf_repo):
        raise Exit(1, stderr="error: name one model, by -m or -hf\n")
    for name in ("json", "plot"):
        path = getattr(options, name)
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise Exit(1, stderr=f"error: --{name} {path}: no file can be written there\n")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
