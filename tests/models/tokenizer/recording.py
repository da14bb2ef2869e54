"""Token ids that a llama-server gave for every line of the corpus."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "fixtures" / "tokenizer"
SEED = 10621
N_RANDOM_LINES = 3000


@dataclass(frozen=True)
class Line:
    text: str
    tokens: list[int]
    tokens_plain: list[int]
    """With ``parse_special`` off."""
    pieces: str
    """What /detokenize makes of ``tokens``."""


def read(name: str) -> list[Line]:
    content = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return [
        Line(text, tokens, tokens if plain is None else plain, text if pieces is None else pieces)
        for text, tokens, plain, pieces in content["lines"]
    ]


def write(name: str, build: str, lines: list[Line]) -> None:
    """Answers that are the same as their neighbour are left out."""
    rows = [
        (
            line.text,
            line.tokens,
            None if line.tokens_plain == line.tokens else line.tokens_plain,
            None if line.pieces == line.text else line.pieces,
        )
        for line in lines
    ]
    content = json.dumps({"build": build, "lines": rows}, separators=(",", ":"))
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(content.encode(), 9, mtime=0))
