"""The patient decoder reads what Python's own reads, lets others work, and stops in time."""

from __future__ import annotations

import json
import sys
import threading

import pytest
from hypothesis import given

from mlxserver.api import json_body, patient_json
from mlxserver.api.errors import ApiError
from mlxserver.api.json_body import parse_json
from mlxserver.api.patient_json import has_many_values
from tests.api.test_json_body import JSON

BAD = [
    b"[",
    b'{"a":1,}',
    b"[1] x",
    b"[01]",
    b"[NaN]",
    b"[1e999]",
    b'["\\ud800"]',
    b'["a\tb"]',
    b'["\\x"]',
    b"[tru",
]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "has_many_values", lambda body: True)


@given(JSON)
def test_it_reads_the_same(value: object) -> None:
    text = json.dumps(value)
    patient = patient_json.patient_decoder(**json_body._HOOKS)
    found = patient.decode(text)
    assert json.dumps(found) == json.dumps(json_body._DECODER.decode(text))


@pytest.mark.parametrize("body", BAD)
def test_it_refuses_the_same_with_the_same_words(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApiError) as quick:
        parse_json(body)
    monkeypatch.setattr(json_body, "has_many_values", lambda body: True)
    with pytest.raises(ApiError) as patient:
        parse_json(body)
    assert (patient.value.status, patient.value.message) == (quick.value.status, quick.value.message)


@pytest.mark.parametrize("piece", [b"[]", b"{}", b'{"a":1}'])
def test_arrays_and_objects_are_counted(patient: None, piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient_json, "MAX_CONTAINERS", 10)
    assert len(parse_json(b"[" + b",".join([piece] * 9) + b"]")) == 9
    with pytest.raises(ApiError) as caught:
        parse_json(b"[" + b",".join([piece] * 10) + b"]")
    assert caught.value.status == 400 and "arrays and objects" in caught.value.message


def test_keys_are_counted_and_of_equal_ones_the_last_holds(
    patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient_json, "MAX_KEYS", 3)
    assert parse_json(b'{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}
    with pytest.raises(ApiError, match="more than 3 keys in an object") as caught:
        parse_json(b'{"a":1,"b":2,"c":3,"d":4}')
    assert caught.value.status == 400


def test_each_text_is_counted_by_itself(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient_json, "MAX_CONTAINERS", 10)
    for _ in range(3):
        parse_json(b"[" + b",".join([b"[]"] * 9) + b"]")


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 50_000])
def test_deep_nesting_is_refused(patient: None, body: bytes) -> None:
    with pytest.raises(ApiError, match="nested too deeply"):
        parse_json(body)


@pytest.mark.parametrize(
    ("body", "many"),
    [
        (b"[" + b",".join([b"123"] * 500_000) + b"]", False),
        (b'["' + b"a" * 1_000_000 + b'"]', False),
        (b"[" + b",".join([b"[]"] * 150_000) + b"]", True),
        (b"[" + b",".join([b'"a"'] * 150_000) + b"]", True),
    ],
)
def test_many_are_strings_arrays_and_objects(body: bytes, many: bool) -> None:
    assert has_many_values(body) is many


def test_other_threads_run_meanwhile() -> None:
    """The C code would not let this thread count before it is through."""
    body = b"[" + b",".join([b"[]"] * 300_000) + b"]"
    n, interval = 0, sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        reading = threading.Thread(target=parse_json, args=(body,))
        reading.start()
        while reading.is_alive():
            n += 1
            reading.join(0.001)
    finally:
        sys.setswitchinterval(interval)
    assert n > 10
