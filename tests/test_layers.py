"""The rules of docs/architecture.md that code can break without any other test noticing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mlxserver"

MAY_IMPORT = {
    "models": {"options"},
    "kv": {"models", "options"},
    "sampling": {"models", "options"},
    "engine": {"kv", "sampling", "models", "options", "telemetry"},
    "chat": {"engine", "kv", "sampling", "models", "options", "telemetry"},
    "api": {"chat", "engine", "kv", "sampling", "models", "options", "telemetry"},
    "validate": {"engine", "kv", "models", "options"},
    "options": set[str](),
    "telemetry": {"engine", "models", "options"},
}
"""What each layer may import besides itself: api -> chat -> engine -> kv, sampling -> models."""

FORBIDDEN = {
    "engine": {"starlette", "uvicorn", "pydantic", "jinja2"},
    "kv": {"starlette", "uvicorn", "pydantic", "jinja2"},
    "sampling": {"starlette", "uvicorn", "pydantic"},
    "models": {"starlette", "uvicorn"},
    "validate": {"starlette", "uvicorn", "pydantic", "jinja2"},
    "api": {"mlx", "mlx_lm"},
    "chat": {"mlx", "mlx_lm", "starlette", "uvicorn"},
    "options": {"mlx", "mlx_lm", "starlette", "uvicorn"},
    "telemetry": {"mlx", "mlx_lm", "starlette", "uvicorn"},
}

WITHOUT_ARRAYS = ["mlxserver.api", "mlxserver.chat", "mlxserver.options", "mlxserver.telemetry"]
PLAIN_ENGINE_MODULES = ["task", "slot", "deferred", "scheduler", "plan", "mailbox"]
"""Modules of engine/ that decide and carry, and therefore hold no arrays; those that exist are checked."""

LINES_MAX = 500
LINES_WANTED = 300


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, those inside functions too, those for type checkers not."""
    package = path.relative_to(ROOT).parent.parts
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if is_type_checking(node):
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        pending.extend(ast.iter_child_nodes(node))


def layer_of(path: Path) -> str | None:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def test_each_folder_is_a_known_layer() -> None:
    assert {layer_of(path) for path in modules()} - {None} <= MAY_IMPORT.keys()


def test_layers_import_downwards_only() -> None:
    wrong = []
    for path in modules():
        layer = layer_of(path)
        if layer is None:
            continue
        for line, name in imports_of(path):
            parts = name.split(".")
            target = parts[1] if parts[0] == "mlxserver" and len(parts) > 1 else None
            if target in MAY_IMPORT and target != layer and target not in MAY_IMPORT[layer]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} ({layer}) imports {name}")
    assert not wrong, "\n".join(wrong)


def test_layers_do_not_import_foreign_libraries() -> None:
    wrong = []
    for path in modules():
        forbidden = FORBIDDEN.get(layer_of(path) or "", set())
        for line, name in imports_of(path):
            if name.split(".")[0] in forbidden:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def importable(prefix: str) -> list[str]:
    folder = ROOT.joinpath(*prefix.split("."))
    names = sorted(path.stem for path in folder.glob("*.py"))
    return [prefix, *(f"{prefix}.{name}" for name in names if name != "__init__")]


@pytest.mark.parametrize("prefix", WITHOUT_ARRAYS)
def test_the_event_loop_side_loads_no_mlx(prefix: str) -> None:
    assert_loads_no_mlx(importable(prefix))


def test_the_scheduler_loads_no_mlx() -> None:
    names = [n for n in PLAIN_ENGINE_MODULES if (PACKAGE / "engine" / f"{n}.py").exists()]
    assert "task" in names
    assert_loads_no_mlx([f"mlxserver.engine.{name}" for name in names])


def assert_loads_no_mlx(names: list[str]) -> None:
    """Imports them in a fresh interpreter, so that what they import in turn counts too."""
    code = f"import sys, {', '.join(names)}; sys.exit('mlx.core' in sys.modules)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"{names[0]} and its modules load mlx.core\n{result.stderr}"


def test_file_sizes() -> None:
    sizes = {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    large = {path: lines for path, lines in sizes.items() if lines > LINES_WANTED}
    for path, lines in sorted(large.items(), key=lambda item: -item[1]):
        print(f"{lines:5} {path}")
    assert not [path for path, lines in large.items() if lines > LINES_MAX]


def test_no_file_names_a_machine() -> None:
    """Paths of the machine where a file was written have no place in it."""
    machine = re.compile(r"(?<![\w.])/(?:work|home|root|Users|tmp/(?:ref|models|bash_jobs))/[\w.]")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=60)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    wrong = []
    for name in listing.stdout.decode().split("\0"):
        path = ROOT / name
        if path.is_symlink() and path.readlink().is_absolute():
            wrong.append(f"{name} -> {path.readlink()}")
        if not name or not path.is_file() or path == Path(__file__):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [f"{name}: {match[0]}" for match in machine.finditer(text)]
    assert not wrong, "\n".join(wrong[:20])
