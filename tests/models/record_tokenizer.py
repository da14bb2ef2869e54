"""Records a llama-server's token ids for the corpus, for test_parity.py.

llama-server -m MODEL.gguf -c 256 -np 1 --port 8080
python -m tests.models.record_tokenizer --server http://127.0.0.1:8080 --name smollm2
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import httpx

from tests.models.tokenizer import corpus, recording


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--name", required=True, help="the recording's file name, such as smollm2")
    args = parser.parse_args()
    with httpx.Client(base_url=args.server, timeout=60) as client:
        build = client.get("/props").json()["build_info"]
        lines = list(_answers(client, corpus.lines(recording.SEED, recording.N_RANDOM_LINES)))
    recording.write(args.name, build, lines)


def _answers(client: httpx.Client, texts: list[str]) -> Iterator[recording.Line]:
    for text in texts:
        tokens = _post(client, "/tokenize", content=text)["tokens"]
        yield recording.Line(
            text=text,
            tokens=tokens,
            tokens_plain=_post(client, "/tokenize", content=text, parse_special=False)["tokens"],
            pieces=_post(client, "/detokenize", tokens=tokens)["content"],
        )


def _post(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


if __name__ == "__main__":
    main()
