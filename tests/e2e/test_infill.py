"""/infill on a tiny random model whose file names fill-in-the-middle tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.server import Server, running_server
from tests.models.gguf_files import KINDS, write

PRE, SUF, MID = 1, 2, 3
TOKENS = {"prefix": PRE, "suffix": SUF, "middle": MID}


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("coder")
    write(folder / "tiny.gguf", KINDS["llama"])
    given = ",".join(f"tokenizer.ggml.{name}_token_id=int:{token}" for name, token in TOKENS.items())
    arguments = ["-c", "512", "-b", "64", "-np", "1", "--override-kv", given]
    with running_server(folder / "tiny.gguf", folder / "log", *arguments) as running:
        yield running


def test_the_middle_continues_the_assembled_prompt(coder: Server) -> None:
    asked = {"n_predict": 6, "temperature": 0, "return_tokens": True}
    middle = coder.post("/infill", input_prefix="ab", input_suffix="cd", prompt="e", **asked)
    prefix, suffix, begun = (coder.post("/tokenize", content=text)["tokens"] for text in ("ab", "cd", "e"))
    tokens = [PRE, *prefix, *begun, SUF, *suffix, MID]
    same = coder.post("/completion", prompt=tokens, **asked)
    assert middle["tokens"] == same["tokens"] != []
    assert (middle["prompt"], middle["tokens_evaluated"]) == (same["prompt"], len(tokens))


def test_a_long_file_is_cut_around_the_cursor(coder: Server) -> None:
    answer = coder.post("/infill", input_prefix="x" * 300, input_suffix="y" * 300, n_predict=1)
    n_prefix, n_suffix = 3 * (64 // 4), 64 // 4 - 2
    assert answer["tokens_evaluated"] == 3 + n_prefix + n_suffix
    assert answer["prompt"].count("x") == n_prefix and answer["prompt"].count("y") == n_suffix
