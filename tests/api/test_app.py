"""What stands around every handler: origins, keys, readiness, limits, unknown routes, failures."""

from __future__ import annotations

import os
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from mlxserver.api import gates
from mlxserver.api.router import Router
from mlxserver.api.routes import Route
from mlxserver.api.state import ServerState
from tests.api.served import client_of, served, served_state

NOT_FOUND = {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}
INVALID_KEY = {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}}


def test_json_is_declared_as_utf_8() -> None:
    assert served().get("/health").headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nope"),
        ("GET", "/health/"),
        ("GET", "//health"),
        ("GET", "/completion"),
        ("POST", "/health"),
        ("PUT", "/completion"),
        ("DELETE", "/models"),
        ("POST", "/models/load"),
        ("GET", "/"),
        ("GET", "/v1/models/x"),
    ],
)
def test_what_has_no_route_is_not_found(method: str, path: str) -> None:
    response = served().request(method, f"http://testserver{path}")
    assert (response.status_code, response.json()) == (404, NOT_FOUND)


def test_head_is_get_without_a_body() -> None:
    response = served().head("/health")
    assert (response.status_code, response.headers["content-type"]) == (
        200,
        "application/json; charset=utf-8",
    )


def test_a_handler_that_fails_is_a_server_error(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: Request, state: ServerState) -> Response:
        raise KeyError("boom")

    router = Router(served_state(), [Route("GET", ("/x",), fail)])
    response = TestClient(router).get("/x")
    assert response.status_code == 500
    assert response.json() == {"error": {"code": 500, "message": "'boom'", "type": "server_error"}}
    assert "GET /x failed" in caplog.text


class TestKeys:
    client = served("--api-key", "one,two")

    @pytest.mark.parametrize(
        "headers",
        [
            {"Authorization": "Bearer one"},
            {"Authorization": "two"},
            {"X-Api-Key": "one"},
            {"X-Api-Key": "Bearer two"},
            {"Authorization": "", "X-Api-Key": "one"},
        ],
    )
    def test_accepted(self, headers: dict[str, str]) -> None:
        assert self.client.get("/models", headers=headers).status_code == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": "Bearer three"},
            {"Authorization": "bearer one"},
            {"Authorization": "Bearer one,two"},
            {"Authorization": "Basic one"},
            {"Authorization": "Bearer "},
            {"Authorization": "Bearer wrong", "X-Api-Key": "one"},
            {"Authorization": b"Bearer \xff"},
        ],
    )
    def test_refused(self, headers: dict[str, Any]) -> None:
        response = self.client.get("/models", headers=headers)
        assert (response.status_code, response.json()) == (401, INVALID_KEY)

    def test_public(self) -> None:
        assert self.client.get("/health").status_code == 200
        assert self.client.get("/v1/health").status_code == 200
        assert self.client.get("/nope").status_code == 401
        assert self.client.options("/completion").status_code == 200

    def test_under_a_prefix_health_needs_the_key(self) -> None:
        client = served("--api-key", "one", "--api-prefix", "/llm")
        assert client.get("/llm/health").status_code == 401
        assert client.get("/health").status_code == 404
        assert client.get("/llm/health", headers={"Authorization": "one"}).status_code == 200


def test_a_prefix_stands_before_every_route() -> None:
    client = served("--api-prefix", "/llm")
    assert client.get("/llm/health").status_code == 200
    assert client.get("/llmhealth").status_code == 404
    assert client.get("/health").status_code == 404
    assert client.post("/llm/slots/0?action=erase").status_code == 501


class TestOrigins:
    def allowed(self, origin: str | None, *argv: str) -> str | None:
        headers = {} if origin is None else {"Origin": origin}
        return served(*argv).get("/health", headers=headers).headers.get("access-control-allow-origin")

    def test_everyone_by_name(self) -> None:
        assert self.allowed("http://a.example") == "http://a.example"
        assert self.allowed(None) == ""

    def test_everyone_without_credentials(self) -> None:
        assert self.allowed("http://a.example", "--no-cors-credentials") == "*"

    def test_this_machine(self) -> None:
        argv = ("--cors-origins", "localhost")
        assert self.allowed("http://localhost:3000", *argv) == "http://localhost:3000"
        assert self.allowed("https://[::1]:1", *argv) == "https://[::1]:1"
        assert self.allowed("http://localhost.example", *argv) is None
        assert self.allowed("http://[", *argv) is None

    def test_a_list_goes_out_as_it_is(self) -> None:
        assert self.allowed("http://c", "--cors-origins", "http://a,http://b") == "http://a,http://b"

    def test_options_are_answered_for_any_path(self) -> None:
        response = served("--cors-methods", "GET").options("/nope", headers={"Origin": "http://a"})
        assert (response.status_code, response.text) == (200, "")
        assert response.headers["content-type"] == "text/html"
        names = ("origin", "credentials", "methods", "headers")
        values = [response.headers[f"access-control-allow-{name}"] for name in names]
        assert values == ["http://a", "true", "GET", "*"]
        assert "access-control-allow-methods" not in served().get("/health").headers


class TestLoading:
    def client(self, *argv: str) -> TestClient:
        state = served_state(*argv)
        state.ready = None
        return client_of(state)

    def test_everything_waits_for_the_model(self) -> None:
        for path in ("/health", "/nope", "/props"):
            response = self.client().get(path)
            assert response.status_code == 503
            assert response.json() == {
                "error": {"message": "Loading model", "type": "unavailable_error", "code": 503}
            }

    def test_readiness_comes_before_the_key_and_after_options(self) -> None:
        assert self.client("--api-key", "k").get("/props").status_code == 503
        assert self.client().options("/props").status_code == 200


class TestLimits:
    def test_a_body_that_says_it_is_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gates, "MAX_BODY", 10)
        response = served().post("/tokenize", content=b"x" * 11)
        assert response.status_code == 413
        assert response.json()["error"] == {
            "code": 413,
            "message": "Payload Too Large",
            "type": "invalid_request_error",
        }

    def test_a_body_that_turns_out_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gates, "MAX_BODY", 10)
        chunks = iter([b"x" * 6, b"x" * 6])
        assert served().post("/tokenize", content=chunks).status_code == 413

    @pytest.mark.parametrize("encoding", ["gzip", "br", "identity, Deflate", "zstd"])
    def test_a_compressed_body_is_not_taken_for_text(self, encoding: str) -> None:
        response = served().post(
            "/tokenize", content=b'{"content":"a"}', headers={"Content-Encoding": encoding}
        )
        assert response.status_code == 415
        assert response.json()["error"]["type"] == "invalid_request_error"

    def test_an_unknown_encoding_is_none(self) -> None:
        headers = {"Content-Encoding": "identity"}
        assert served().post("/tokenize", content=b'{"content":"a"}', headers=headers).status_code == 200

    def test_the_largest_body_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gates, "MAX_BODY", 15)
        assert served().post("/tokenize", content=b'{"content":"a"}').status_code == 200


def test_files_are_served_from_a_folder(tmp_path: Any) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "a.txt").write_text("a")
    client = served("--path", str(tmp_path))
    assert client.get("/a.txt").text == "a"
    assert client.get("/absent.txt").json() == NOT_FOUND
    assert client.get("/../../etc/passwd").status_code == 404
    assert client.get("/health").json() == {"status": "ok"}


def test_files_outside_the_folder_are_not_served(tmp_path: Any) -> None:
    folder = tmp_path / "public"
    (folder / "deep").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "public-too").mkdir()
    (tmp_path / "public-too" / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    client = served("--path", str(folder))
    for path in (
        "/../secret",
        "/%2e%2e/secret",
        "/%2e%2e%2fsecret",
        "/deep/..%2f..%2fsecret",
        "/..%5csecret",
        "/../public-too/secret",
        f"/{tmp_path}/secret",
        f"/%2f{str(tmp_path)[1:]}/secret",
        "/link",
        "/up/secret",
        "/pipe",
        "/a%00b",
        "/%ff%fe",
        "/" + "a" * 5000,
    ):
        response = client.get(path)
        assert (response.status_code, response.json()) == (404, NOT_FOUND), path


def test_files_need_the_key(tmp_path: Any) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    client = served("--path", str(tmp_path), "--api-key", "k")
    assert client.get("/index.html").status_code == 401


def test_a_folder_that_is_none_stops_the_start(tmp_path: Any) -> None:
    with pytest.raises(NotADirectoryError, match="static assets path not found"):
        served("--path", str(tmp_path / "absent"))


def test_one_line_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    client = served()
    client.post("/tokenize", json={"content": "secret"})
    client.get("/health")
    lines = [record.getMessage() for record in caplog.records if "done request" in record.getMessage()]
    assert lines == ["srv  log_server_r: done request: POST /tokenize testclient 200"]
