"""The JSON keys that the source of a module names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import mlxserver

PACKAGE = Path(mlxserver.__file__).parent
GETTERS = frozenset("value_or _text _flag _object _list _at _required _optional_text _are_texts".split())
"""Functions whose first argument is an object, and the others keys of it."""


def tree(module: str) -> ast.AST:
    return ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))


def emitted(module: str) -> set[str]:
    """Keys of dict displays, and of items that are set."""
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Dict):
            found |= {text for key in node.keys if (text := _text(key))}
        elif isinstance(node, ast.Assign):
            targets = (target for target in node.targets if isinstance(target, ast.Subscript))
            found |= {text for target in targets if (text := _text(target.slice))}
    return found


def read(module: str) -> set[str]:
    """Keys that are looked up: by ``in``, ``[...]``, ``.get`` or one of the getters."""
    return {key for node in ast.walk(tree(module)) for key in _read_by(node)}


def named(path: Path) -> set[str]:
    """Every string of a file, every keyword of a call, every field of a class."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Constant(value=str(text)) | ast.keyword(arg=str(text)):
                found.add(text)
            case ast.AnnAssign(target=ast.Name(id=text)):
                found.add(text)
    return found


def _read_by(node: ast.AST) -> Iterator[str]:
    keys: list[ast.expr | None] = []
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        keys = [node.left] if isinstance(node.comparators[0], ast.Name) else []
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        keys = [node.slice]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        keys = list(node.args[:1])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in GETTERS:
        keys = list(node.args[1:2]) if node.func.id != "_are_texts" else list(node.args[1:])
    yield from (text for key in keys if (text := _text(key)))


def _text(node: ast.expr | None) -> str:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text and isinstance(node, ast.Constant) else ""
