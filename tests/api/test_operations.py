"""Health, properties, models, slots and metrics."""

from __future__ import annotations

from mlxserver.engine.task import Counters, SlotView
from tests.api.served import WatchedEngine, served

PROPS = [
    "default_generation_settings",
    "total_slots",
    "model_alias",
    "model_ftype",
    "model_path",
    "modalities",
    "media_marker",
    "endpoint_slots",
    "endpoint_props",
    "endpoint_metrics",
    "ui",
    "ui_settings",
    "chat_template",
    "chat_template_caps",
    "bos_token",
    "eos_token",
    "build_info",
    "is_sleeping",
    "cors_proxy_enabled",
]


def test_health() -> None:
    client = served()
    assert client.get("/health?x=1").json() == client.get("/v1/health").json() == {"status": "ok"}


def test_props_have_llama_servers_keys_in_order() -> None:
    props = served("--temp", "0.5", "-n", "7", "--no-slots", bos_text="<s>").get("/props").json()
    assert list(props) == PROPS
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == 512
    params = settings["params"]
    assert (params["temperature"], params["n_predict"], params["reasoning_format"]) == (0.5, -1, "none")
    assert (props["total_slots"], props["endpoint_slots"], props["bos_token"]) == (4, False, "<s>")


def test_props_show_a_second_template() -> None:
    client = served("--chat-template", "x")
    assert "chat_template_tool_use" not in client.get("/props").json()
    assert client.get("/props").json()["chat_template"] == "x"


def test_props_change_nothing() -> None:
    assert served("--props").post("/props", json={"x": 1}).json() == {"success": True}
    refused = served().post("/props", json={})
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        501,
        "This server does not support changing global properties. Start it with `--props`",
    )


def test_models_by_both_names() -> None:
    client = served("--alias", "b,a", "--tags", "y,x")
    answer = client.get("/v1/models").json()
    assert list(answer) == ["models", "object", "data"]
    [model] = answer["data"]
    assert (model["id"], model["aliases"], model["tags"]) == ("a", ["a", "b"], ["x", "y"])
    assert model["meta"]["n_ctx"] == 512
    assert answer["models"][0]["name"] == "a"
    assert served().get("/models").json()["data"][0]["id"] == "fake.gguf"


class TestSlots:
    busy = SlotView(1, 256, True, 7, 12, 3, 9, {"n_predict": 4}, (), True, 2, 2)

    def test_a_slot_shows_its_last_task(self) -> None:
        client = served(engine=WatchedEngine(SlotView(0, 256, False), self.busy))
        fresh, busy = client.get("/slots").json()
        assert fresh == {"id": 0, "n_ctx": 256, "speculative": False, "is_processing": False}
        assert busy == {
            "id": 1,
            "n_ctx": 256,
            "speculative": False,
            "is_processing": True,
            "id_task": 7,
            "n_prompt_tokens": 12,
            "n_prompt_tokens_processed": 3,
            "n_prompt_tokens_cache": 9,
            "params": {"n_predict": 4},
            "next_token": [{"has_next_token": True, "has_new_line": False, "n_remain": 2, "n_decoded": 2}],
        }

    def test_no_idle_slot_is_an_error_where_asked_for(self) -> None:
        client = served(engine=WatchedEngine(self.busy))
        for query in ("1", "0"):
            response = client.get(f"/slots?fail_on_no_slot={query}")
            assert (response.status_code, response.json()["error"]["message"]) == (503, "no slot available")
        assert client.get("/slots?fail_on_no_slot").status_code == 200

    def test_debugging_shows_texts(self) -> None:
        view = SlotView(0, 256, False, 1, prompt=tuple(b"ab"), generated=tuple(b"cd"))
        [slot] = served(engine=WatchedEngine(view)).get("/slots").json()
        assert (slot["prompt"], slot["generated"]) == ("ab", "cd")

    def test_off(self) -> None:
        response = served("--no-slots", engine=WatchedEngine()).get("/slots")
        assert (response.status_code, response.json()["error"]["message"]) == (
            501,
            "This server does not support slots endpoint. Start it with `--slots`",
        )


class TestMetrics:
    def test_a_scrape(self) -> None:
        engine = WatchedEngine(counters=Counters(prompt_tokens=3), deferred=2)
        client = served("--metrics", engine=engine)
        client.get("/health")
        response = client.get("/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4"
        assert response.headers["process-start-time-unix"].isdigit()
        lines = response.text.splitlines()
        assert "llamacpp:prompt_tokens_total 3" in lines
        assert "llamacpp:requests_deferred 2" in lines
        assert 'mlxserver:http_requests_total{route="/health",status="2xx"} 1' in lines

    def test_off(self) -> None:
        response = served().get("/metrics")
        assert (response.status_code, response.json()["error"]["message"]) == (
            501,
            "This server does not support metrics endpoint. Start it with `--metrics`",
        )
