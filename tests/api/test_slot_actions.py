"""``POST /slots/{id}``: names that stay in the folder, slots, answers and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlxserver.api.slot_actions import is_plain_name
from mlxserver.engine.mailbox import SlotOutcome
from tests.api.fake_engine import FakeEngine
from tests.api.served import served


class ActingEngine(FakeEngine):
    def __init__(self, outcome: SlotOutcome) -> None:
        super().__init__("ok")
        self.outcome = outcome
        self.asked: list[tuple[str, int, Path | None]] = []

    async def act(self, kind: str, slot: int, path: Path | None = None) -> SlotOutcome:
        self.asked.append((kind, slot, path))
        return self.outcome


def act(tmp_path: Path, url: str, outcome: SlotOutcome | None = None, **body: Any) -> Any:
    client = served("--slot-save-path", str(tmp_path), engine=ActingEngine(outcome or SlotOutcome()))
    return client.post(url, json=body)


def test_without_a_folder_nothing_is_done() -> None:
    response = served().post("/slots/0?action=erase")
    assert response.status_code == 501
    assert "Start it with `--slot-save-path`" in response.json()["error"]["message"]


def test_answers_have_llama_servers_keys(tmp_path: Path) -> None:
    outcome = SlotOutcome(n_tokens=7, n_bytes=90, seconds=0.5)
    saved = act(tmp_path, "/slots/1?action=save", outcome, filename="a.bin").json()
    assert saved == {
        "id_slot": 1,
        "filename": "a.bin",
        "n_saved": 7,
        "n_written": 90,
        "timings": {"save_ms": 500.0},
    }
    restored = act(tmp_path, "/slots/9?action=restore", outcome, filename="a.bin").json()
    assert (restored["id_slot"], restored["n_restored"], restored["n_read"]) == (9, 7, 90)
    assert act(tmp_path, "/slots/2?action=erase", outcome).json() == {"id_slot": 2, "n_erased": 7}


@pytest.mark.parametrize(
    ("url", "status", "message"),
    [
        ("/slots/abc?action=erase", 400, "Invalid slot ID"),
        ("/slots/?action=erase", 400, "Invalid slot ID"),
        ("/slots/99999999999?action=erase", 400, "Invalid slot ID"),
        ("/slots/0?action=other", 400, "Invalid action"),
        ("/slots/0", 400, "Invalid action"),
        ("/slots/0?action=save", 500, "[json.exception.out_of_range.403] key 'filename' not found"),
    ],
)
def test_bad_requests(tmp_path: Path, url: str, status: int, message: str) -> None:
    response = act(tmp_path, url)
    assert (response.status_code, response.json()["error"]["message"]) == (status, message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"filename":1}', "[json.exception.type_error.302] type must be string, but is number"),
        (b'{"filename":null}', "[json.exception.type_error.302] type must be string, but is null"),
        (b"[]", "[json.exception.type_error.304] cannot use at() with array"),
        (b"null", "[json.exception.type_error.304] cannot use at() with null"),
    ],
)
def test_bodies_of_a_wrong_kind_are_the_clients_fault(
    body: bytes, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    response = served("--slot-save-path", str(tmp_path)).post("/slots/0?action=save", content=body)
    assert (response.status_code, response.json()["error"]["message"]) == (500, message)
    assert "Traceback" not in caplog.text


def test_failures_of_the_engine(tmp_path: Path) -> None:
    failed = SlotOutcome(error="no room")
    response = act(tmp_path, "/slots/0?action=save", failed, filename="a")
    assert (response.status_code, response.json()["error"]["message"]) == (500, "Unable to save slot")
    response = act(tmp_path, "/slots/0?action=restore", failed, filename="a")
    assert (response.status_code, response.json()["error"]["message"]) == (
        400,
        "Unable to restore slot: no room",
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../up",
        "a/b",
        "/etc/hosts",
        "a\\b",
        "a..b",
        "end.",
        "end ",
        " start",
        "a:b",
        "a*b",
        "a?b",
    ]
    + ['a"b', "a<b", "a|b", "tab\tname", "x" * 256, "\x7f", "\u0085", "a\uff0eb", "a\u2215b", "\ufffd"],
)
def test_names_that_could_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    assert not is_plain_name(name)
    response = act(tmp_path, "/slots/0?action=save", filename=name)
    assert (response.status_code, response.json()["error"]["message"]) == (400, "Invalid filename")


@pytest.mark.parametrize("name", ["a", "trip.bin", "x" * 255, "Größe 1.bin", ".hidden"])
def test_plain_names_are_taken(name: str) -> None:
    assert is_plain_name(name)


def test_with_cache_tenants_each_key_has_a_space_of_its_own() -> None:
    tenants = {}
    for flag in ("--cache-tenants", "--no-cache-tenants"):
        engine = FakeEngine("ok")
        client = served("--api-key", "one,two", flag, engine=engine)
        for key in ("one", "two", "one"):
            headers = {"Authorization": f"Bearer {key}"}
            assert client.post("/completion", json={"prompt": "a"}, headers=headers).status_code == 200
        tenants[flag] = [run.task.identity.tenant for run in engine.runs]
    one, two, again = tenants["--cache-tenants"]
    assert one == again != two
    assert "one" not in one
    assert set(tenants["--no-cache-tenants"]) == {""}
