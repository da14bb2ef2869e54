"""``--allowed-hosts``: a page that points its own name at the server gets nothing."""

from __future__ import annotations

import pytest

from tests.api.served import served


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "localhost.", "[::1]:8080", "10.0.0.1:1"])
def test_allowed(host: str) -> None:
    client = served("--allowed-hosts", "localhost, ::1,10.0.0.1")
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "localhost@evil:1", "::1"])
def test_refused(host: str) -> None:
    client = served("--allowed-hosts", "localhost,::1")
    for method in ("GET", "OPTIONS"):
        answer = client.request(method, "/health", headers={"Host": host})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    assert answer.json()["error"]["type"] == "permission_error"


def test_without_the_option_every_name_is_right() -> None:
    assert served().get("/health", headers={"Host": "evil.example"}).status_code == 200
