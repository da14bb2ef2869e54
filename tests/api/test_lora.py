"""/lora-adapters and what requests make of the adapters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from mlxserver.api.adapter_list import AdapterList
from mlxserver.engine.mailbox import AdapterInfo
from mlxserver.kv.identity import CacheIdentity
from tests.api.fake_engine import FakeEngine
from tests.api.served import WatchedEngine, client_of, served_state

A = AdapterInfo("a.gguf", "aaaa", task_name="sums", prompt_prefix="Sum:")
B = AdapterInfo("b.gguf", "bbbb", invocation=tuple(b"[go]"))


class Loading(FakeEngine):
    """Loads whatever it is told to, unless it is called "bad"."""

    def __init__(self) -> None:
        super().__init__("ok")
        self.unloaded: list[str] = []

    async def load_adapter(self, path: str) -> AdapterInfo | str:
        name = Path(path).name
        return f"{path}: no adapter" if name == "bad" else AdapterInfo(path, f"digest of {name}")

    def unload_adapter(self, digest: str) -> None:
        self.unloaded.append(digest)


def adapted(
    engine: FakeEngine | None = None, *argv: str, scales: tuple[float, ...] = (1.0, 0.0)
) -> tuple[TestClient, FakeEngine]:
    engine = engine or FakeEngine("ok")
    state = served_state(*argv, engine=engine)
    assert state.ready is not None
    state.ready = replace(state.ready, adapters=AdapterList([A, B][: len(scales)], scales))
    return client_of(state), engine


def identity_of(client: TestClient, engine: FakeEngine, path: str, body: dict[str, Any]) -> CacheIdentity:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return engine.runs[-1].task.identity


def test_the_list() -> None:
    client, _ = adapted()
    assert client.get("/lora-adapters").json() == [
        {"id": 0, "path": "a.gguf", "scale": 1.0, "task_name": "sums", "prompt_prefix": "Sum:"},
        {
            "id": 1,
            "path": "b.gguf",
            "scale": 0.0,
            "task_name": "",
            "prompt_prefix": "",
            "alora_invocation_string": "[go]",
            "alora_invocation_tokens": list(b"[go]"),
        },
    ]


def test_new_scales_are_those_of_later_requests() -> None:
    client, engine = adapted(scales=(1.0,))
    assert identity_of(client, engine, "/completion", {"prompt": "x"}).adapters == (("aaaa", 1.0),)
    assert client.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}]).json() == {"success": True}
    assert identity_of(client, engine, "/completion", {"prompt": "x"}).adapters == (("aaaa", 0.5),)
    client.post("/lora-adapters", json=[])
    assert identity_of(client, engine, "/completion", {"prompt": "x"}) == CacheIdentity()


@pytest.mark.parametrize("body", [{"id": 0}, "x", 3])
def test_scales_come_in_an_array(body: object) -> None:
    client, _ = adapted()
    answer = client.post("/lora-adapters", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "Request body must be an array"


CHAT = {"messages": [{"role": "user", "content": "x"}]}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/completion", {"prompt": "x"}),
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/chat/completions", CHAT),
    ("/v1/messages", CHAT | {"max_tokens": 5}),
    ("/v1/responses", {"input": "x"}),
]


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_every_generating_route_takes_adapters(path: str, body: dict[str, Any]) -> None:
    client, engine = adapted(scales=(1.0,))
    assert identity_of(client, engine, path, body).adapters == (("aaaa", 1.0),)
    wish = body | {"lora": [{"id": 0, "scale": 0.25}]}
    assert identity_of(client, engine, path, wish).adapters == (("aaaa", 0.25),)
    none = body | {"lora": [{"id": 0, "scale": 0}]}
    assert identity_of(client, engine, path, none).adapters == ()


def test_an_invocation_is_found_in_the_prompt() -> None:
    client, engine = adapted(scales=(0.0, 1.0))
    assert identity_of(client, engine, "/completion", {"prompt": "ab[go]cd"}).adapters == ()
    task = engine.runs[-1].task
    assert (task.invoked, task.tokens[task.invoked_at + 1 :]) == ((("bbbb", 1.0),), tuple(b"[go]cd"))
    client.post("/completion", json={"prompt": "no such thing"})
    assert engine.runs[-1].task.invoked == ()


def test_a_wish_that_cannot_be_met_starts_nothing() -> None:
    client, engine = adapted(scales=(0.0, 0.0))
    body = {"prompt": ["a", "b"], "lora": [{"id": 1, "scale": -1}]}
    answer = client.post("/completion", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "Cannot run multiple aLoRAs in a single request"
    assert engine.runs == []


def test_slots_tell_their_adapters_where_there_are_some() -> None:
    from mlxserver.engine.task import SlotView

    views = (SlotView(0, 8, True, 3, adapters=(("aaaa", 0.5), ("gone", 1.0))), SlotView(1, 8, False))
    client, _ = adapted(WatchedEngine(*views))
    told = client.get("/slots").json()
    assert told[0]["lora"] == [{"id": 0, "scale": 0.5}, {"id": -1, "scale": 1.0}]
    assert told[1]["lora"] == []
    without, _ = adapted(WatchedEngine(*views), scales=())
    assert "lora" not in without.get("/slots").json()[0]


# ------------------------------------------------------- while the server runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("new", "bad", "other"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    return tmp_path


def test_an_adapter_is_loaded_and_forgotten_while_running(folder: Path) -> None:
    engine = Loading()
    client, _ = adapted(engine, "--lora-dir", str(folder))
    loaded = client.post("/lora-adapters/load", json={"name": "new"})
    assert loaded.json()["success"] and (loaded.json()["id"], loaded.json()["scale"]) == (2, 0.0)
    wish = {"prompt": "x", "lora": [{"id": 2, "scale": 1}]}
    assert identity_of(client, engine, "/completion", wish).adapters == (("digest of new", 1.0),)
    assert identity_of(client, engine, "/completion", {"prompt": "x"}).adapters == (("aaaa", 1.0),)
    assert client.post("/lora-adapters/unload", json={"id": 2}).json() == {"success": True}
    assert engine.unloaded == ["digest of new"]
    assert identity_of(client, engine, "/completion", wish).adapters == ()
    assert client.post("/lora-adapters/unload", json={"id": 2}).status_code == 400


@pytest.mark.parametrize("name", ["base:v2", "what? *", ".hidden", "a..b", "ü", "line\nend", "back\\slash"])
def test_files_are_loaded_whatever_they_are_called(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"")
    client, _ = adapted(Loading(), "--lora-dir", str(folder))
    loaded = client.post("/lora-adapters/load", json={"name": name})
    assert loaded.json()["success"] and loaded.json()["digest"] == f"digest of {name}"


def test_the_scale_may_be_given_at_once(folder: Path) -> None:
    client, _ = adapted(Loading(), "--lora-dir", str(folder))
    assert client.post("/lora-adapters/load", json={"name": "new", "scale": 0.5}).json()["scale"] == 0.5


def test_without_a_folder_nothing_can_be_loaded() -> None:
    client, _ = adapted(Loading())
    answer = client.post("/lora-adapters/load", json={"name": "new"})
    assert answer.status_code == 501
    assert "--lora-dir" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "absent"}, 400),
        ({"name": "link"}, 400),
        ({"name": "../new"}, 400),
        ({"name": "."}, 400),
        ({"name": ".."}, 400),
        ({"name": "./new"}, 400),
        ({"name": "new\0"}, 400),
        ({"name": "/etc/passwd"}, 400),
        ({"name": ""}, 400),
        ({"name": 3}, 400),
        ({}, 400),
        ([], 400),
        ({"name": "new", "scale": "x"}, 400),
        ({"name": "bad"}, 400),
    ],
)
def test_what_cannot_be_loaded_changes_nothing(folder: Path, body: Any, status: int) -> None:
    client, _ = adapted(Loading(), "--lora-dir", str(folder))
    answer = client.post("/lora-adapters/load", json=body)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"code", "message", "type"}
    assert str(folder) not in answer.text
    assert len(client.get("/lora-adapters").json()) == 2


def test_an_adapter_is_loaded_once(folder: Path) -> None:
    engine = Loading()
    client, _ = adapted(engine, "--lora-dir", str(folder))
    assert client.post("/lora-adapters/load", json={"name": "new"}).status_code == 200
    again = client.post("/lora-adapters/load", json={"name": "new"})
    assert (again.status_code, again.json()["error"]["message"]) == (400, "the adapter is loaded already")
    assert engine.unloaded == ["digest of new"], "the engine counts how often it was asked"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"id": "x"}, 400),
        ({"id": None}, 400),
        ({"id": True}, 400),
        ({"id": 0.9}, 400),
        ({"id": 9}, 400),
        ({"id": -1}, 400),
        ({"id": 2**32}, 400),
        ("x", 400),
    ],
)
def test_what_cannot_be_unloaded(body: Any, status: int) -> None:
    client, _ = adapted(Loading())
    assert client.post("/lora-adapters/unload", json=body).status_code == status
    assert len(client.get("/lora-adapters").json()) == 2
