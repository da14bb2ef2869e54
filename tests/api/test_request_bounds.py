"""Lists that would hold up everybody are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.api import request_bounds as bounds
from tests.api.fake_engine import FakeEngine
from tests.api.served import served

TRIGGER = {"type": 1, "value": "x"}
N_VOCAB = 300
MANY: list[tuple[str, Any, int]] = [
    ("stop", "x", bounds.MAX_STOPS),
    ("dry_sequence_breakers", "x", bounds.MAX_BREAKERS),
    ("samplers", "top_k", bounds.MAX_SAMPLERS),
    ("reasoning_budget_end_tags", "x", bounds.MAX_END_TAGS),
    ("preserved_tokens", "x", bounds.MAX_PRESERVED),
    ("response_fields", "x", bounds.MAX_RESPONSE_FIELDS),
    ("logit_bias", [5, 1.0], N_VOCAB),
    ("lora", {"id": 0, "scale": 1.0}, bounds.MAX_ADAPTERS),
]


def ask(**fields: Any) -> tuple[int, str]:
    answer = served(engine=FakeEngine("ok")).post("/completion", json={"prompt": "a"} | fields)
    body = answer.json()
    return answer.status_code, body["error"]["message"] if "error" in body else ""


@pytest.mark.parametrize(("field", "item", "most"), MANY)
def test_a_list_may_be_so_long(field: str, item: Any, most: int) -> None:
    assert ask(**{field: [item] * most}) == (200, "")
    message = f"Field '{field}': too many elements ({most + 1}, at most {most})"
    assert ask(**{field: [item] * (most + 1)}) == (400, message)


def test_triggers() -> None:
    fields = {"grammar": 'root ::= "x"', "grammar_lazy": True, "preserved_tokens": ["x"]}
    many = [TRIGGER] * (bounds.MAX_TRIGGERS + 1)
    assert ask(grammar_triggers=many, **fields)[1].startswith("Field 'grammar_triggers': too many elements")


def test_samplers_by_letter() -> None:
    assert ask(samplers="k" * 64)[0] == 200
    assert ask(samplers="k" * 65)[0] == 400


def test_stops_are_bounded_together() -> None:
    half = "\u00e9" * (bounds.MAX_STOP_BYTES // 4)
    assert ask(stop=[half, half])[0] == 200
    message = f"Field 'stop': the texts are too long together ({bounds.MAX_STOP_BYTES + 1} bytes, at most "
    assert ask(stop=[half, half, "x"])[1].startswith(message)


def test_prompts() -> None:
    message = f"too many elements ({bounds.MAX_PROMPTS + 1}, at most {bounds.MAX_PROMPTS})"
    assert ask(prompt=["a"] * (bounds.MAX_PROMPTS + 1)) == (400, message)
    assert ask(prompt=["a"] * 50)[0] == 200


def test_biases_by_text_count_their_tokens() -> None:
    message = "Field 'logit_bias': too many elements (301, at most 300)"
    assert ask(logit_bias=[["x" * 301, 1]]) == (400, message)


def test_scales_of_adapters() -> None:
    assert served().post("/lora-adapters", json=[{}] * (bounds.MAX_ADAPTERS + 1)).status_code == 400


def test_parts_of_a_form() -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nx\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    for n_parts, status in ((1024, 200), (1025, 400)):
        answer = served().post("/completion", content=part * n_parts + b"--b--\r\n", headers=headers)
        assert answer.status_code == status


def test_candidates() -> None:
    assert ask(n_probs=bounds.MAX_N_PROBS + 1)[0] == 400
    assert ask(n_probs=-5)[0] == 200


def test_windows_are_no_larger_than_the_context() -> None:
    engine = FakeEngine("ok")
    body = {"prompt": "a", "repeat_last_n": 2**31 - 1, "dry_penalty_last_n": 2**31 - 1, "n_cmpl": 2}
    answer = served(engine=engine).post("/completion", json=body).json()
    assert answer[0]["generation_settings"]["repeat_last_n"] == 2**31 - 1
    task = engine.runs[0].task
    for sampling in (task.sampling, task.children[0][1]):
        assert (sampling.repeat_last_n, sampling.dry_penalty_last_n) == (engine.n_ctx, engine.n_ctx)
