"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.api.tokenize import detokenize, tokenize
from tests.api.client import client
from tests.api.fake_engine import BOS, TAG, FakeEngine, fake_state

CLIENT = client(fake_state(FakeEngine()), tokenize=tokenize, detokenize=detokenize)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({}, []),
        ([1], []),
        ({"content": "a<tag>"}, [97, TAG]),
        ({"content": "<t", "parse_special": False}, [60, 116]),
        ({"content": "a", "add_special": True}, [BOS, 97]),
        ({"content": "a", "add_special": "x"}, [97]),
        ({"content": ["a", 5, "b"], "add_special": True}, [BOS, 97, 5, 98]),
        ({"content": "é", "with_pieces": True}, [{"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]),
        ({"content": "<tag>", "with_pieces": True}, [{"id": TAG, "piece": "<tag>"}]),
    ],
)
def test_tokenize(body: Any, answer: Any) -> None:
    assert CLIENT.post("/tokenize", json=body).json() == {"tokens": answer}


@pytest.mark.parametrize("content", [5, None, ["a", ["b"]], {"a": 1}])
def test_other_contents_are_an_error(content: Any) -> None:
    got = CLIENT.post("/tokenize", json={"content": content})
    assert (got.status_code, got.json()["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, ""),
        ({"tokens": []}, ""),
        ({"tokens": [104, 105, TAG]}, "hi<tag>"),
        ({"tokens": [104, 195]}, "h\ufffd"),
    ],
)
def test_detokenize(body: Any, text: str) -> None:
    assert CLIENT.post("/detokenize", json=body).json() == {"content": text}


@pytest.mark.parametrize("tokens", ["a", 5, None, ["a"], [300], [-1]])
def test_other_tokens_are_an_error(tokens: Any) -> None:
    assert CLIENT.post("/detokenize", json={"tokens": tokens}).status_code == 500
