"""Records what llama-server gives for the texts of embedding_texts.py:

record_embeddings.py LLAMA_SERVER MINILM_FOLDER
"""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from gguf.constants import MODEL_ARCH

from tests.e2e.server import free_port, is_ready, wait_until
from tests.models import encoder_files
from tests.models.embedding_texts import DOCUMENTS, QUERY, TEXTS, TINY_TEXTS

TARGET = Path(__file__).parents[2] / "fixtures" / "embeddings.json"


@contextmanager
def running(server: str, model: Path, *arguments: str) -> Iterator[str]:
    """One slot: llama-server's batches of several prompts are not always right."""
    port = free_port()
    command = [server, "-m", str(model), "--port", str(port), "-np", "1", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until("the server is ready", lambda: is_ready(url), 60)
        yield url
    finally:
        process.terminate()
        process.wait()


def vectors(url: str, text: str) -> list[str]:
    """One or one a token, as base64 of 32-bit floats."""
    found = httpx.post(f"{url}/embedding", json={"content": text}, timeout=60).json()[0]["embedding"]
    return [base64.b64encode(struct.pack(f"<{len(v)}f", *v)).decode() for v in found]


def tokens(url: str, text: str) -> list[int]:
    body = {"content": text, "add_special": True}
    found: list[int] = httpx.post(f"{url}/tokenize", json=body, timeout=60).json()["tokens"]
    return found


def scores(url: str) -> list[float]:
    """In the order of the documents, each asked for alone."""
    answers = [
        httpx.post(f"{url}/rerank", json={"query": QUERY, "documents": [text]}, timeout=60).json()
        for text in DOCUMENTS
    ]
    return [answer["results"][0]["relevance_score"] for answer in answers]


def main() -> None:
    server, folder = sys.argv[1], Path(sys.argv[2])
    record: dict[str, Any] = {"minilm": {}, "tiny": {}, "nomic": {}, "scores": {}}
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.gguf"
        encoder_files.convert_folder(folder, path)
        with running(server, path, "--embeddings") as url:
            record["minilm"] = {text: [tokens(url, text), *vectors(url, text)] for text in TEXTS}
        encoder_files.write_tiny(path)
        for pooling in ("none", "mean", "cls", "last"):
            with running(server, path, "--embeddings", "--pooling", pooling) as url:
                record["tiny"][pooling] = {text: vectors(url, text) for text in TINY_TEXTS}
        encoder_files.write_tiny(path, MODEL_ARCH.NOMIC_BERT)
        with running(server, path, "--embeddings", "--pooling", "mean") as url:
            record["nomic"] = {text: vectors(url, text) for text in TINY_TEXTS}
        for head in ("", "dense", "out", "dense out"):
            encoder_files.write_tiny(path, head=head)
            with running(server, path, "--rerank") as url:
                record["scores"][head] = scores(url)
    TARGET.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
