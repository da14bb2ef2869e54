"""Adapters over HTTP on the real model: their state never crosses, and a router can follow what is stored."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.server import Server, running_server, wait_until
from tests.models.lora.adapters import write_gguf

PROMPT = "The keeper of the lighthouse wrote down the weather every morning before breakfast. " * 8
Wish = list[dict[str, Any]]
BASE: Wish = [{"id": 0, "scale": 0.0}]
SETS: dict[str, Wish] = {
    "base": BASE,
    "A": [{"id": 0, "scale": 1.0}],
    "B": [{"id": 1, "scale": 1.0}],
    "half A": [{"id": 0, "scale": 0.5}],
    "A and B": [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 1.0}],
}


def random_adapter(path: Path, seed: int) -> Path:
    """Of the queries and values of two layers of SmolLM2-135M."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in (3, 20):
        for name, n_out in (("attn_q", 576), ("attn_v", 192)):
            stem = f"blk.{layer}.{name}.weight"
            tensors[f"{stem}.lora_a"] = rng.standard_normal((4, 576)).astype(np.float32) / 24
            tensors[f"{stem}.lora_b"] = rng.standard_normal((n_out, 4)).astype(np.float32)
    return write_gguf(path, tensors)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate("abc"):
        random_adapter(folder / f"{name}.gguf", seed)
    (folder / "damaged.gguf").write_bytes((folder / "a.gguf").read_bytes()[:-1000])
    return folder


@pytest.fixture(scope="module")
def adapted(smollm2: Path, folder: Path) -> Iterator[Server]:
    options = "-c 4096 -np 2 --lora-init-without-apply --kv-events --max-loras 2 --metrics".split()
    files = [f"--lora={folder}/a.gguf", f"--lora={folder}/b.gguf", f"--lora-dir={folder}"]
    arguments = [part for file in files for part in file.split("=", 1)]
    with running_server(smollm2, folder / "log", *options, *arguments) as server:
        yield server


def ask(server: Server, prompt: str, lora: Any, **fields: Any) -> tuple[str, int]:
    """The greedy text, and how many of the prompt's tokens were cached."""
    fields = {"prompt": prompt, "n_predict": 8, "temperature": 0, "lora": lora} | fields
    answer = server.post("/completion", **fields)
    return answer["content"], answer["timings"]["cache_n"]


def test_state_never_crosses_adapter_sets(adapted: Server) -> None:
    prompt = PROMPT + "And"
    cold = {name: ask(adapted, prompt, lora, cache_prompt=False)[0] for name, lora in SETS.items()}
    assert len(set(cold.values())) > 2, "else nothing would be shown"
    # what was evaluated without the cache lies in the slots and the trie all the same
    prompt = "Now another one. " + prompt
    len_of_prompt = len(adapted.post("/tokenize", content=prompt)["tokens"])
    texts: dict[str, str] = {}
    for turn in range(2):
        for name, lora in SETS.items():
            text, cached = ask(adapted, prompt, lora, id_slot=turn)
            assert cached == (0 if turn == 0 else len_of_prompt - 1), name
            texts.setdefault(name, text)
            assert text == texts[name]


def test_short_prompts_stay_apart_too(adapted: Server) -> None:
    for name, lora in SETS.items():
        first = ask(adapted, "Honey is", lora)
        assert first[1] == 0, name
        assert ask(adapted, "Honey is", lora) == (first[0], 1), name


def test_new_default_scales_touch_nobody_elses_state(adapted: Server) -> None:
    prompt = "Scales are changed. " + PROMPT
    base = ask(adapted, prompt, [])
    httpx.post(f"{adapted.url}/lora-adapters", json=SETS["A"]).raise_for_status()
    try:
        assert ask(adapted, prompt, [])[1] == 0
        text, cached = ask(adapted, prompt, BASE)
        assert text == base[0] and cached > 0
    finally:
        httpx.post(f"{adapted.url}/lora-adapters", json=[]).raise_for_status()
    assert ask(adapted, prompt, [])[0] == base[0]


def test_a_cancelled_prompt_leaves_its_state_to_its_own_set(adapted: Server) -> None:
    prompt = "A long tale of the northern harbour and its people. " * 60
    body = {"prompt": prompt, "n_predict": 8, "lora": SETS["A"], "stream": True, "return_progress": True}
    with httpx.stream("POST", f"{adapted.url}/completion", json=body, timeout=120) as stream:
        next(line for line in stream.iter_lines() if '"processed":' in line and '"processed":0' not in line)
    wait_until("the slots are idle", lambda: not adapted.busy(), 30)
    assert ask(adapted, prompt, BASE)[1] == 0
    assert ask(adapted, prompt, SETS["A"])[1] > 0


def test_mixed_streams_give_what_each_gives_alone(adapted: Server) -> None:
    prompt = "A recipe for bread: "
    alone = {
        name: ask(adapted, prompt, lora, cache_prompt=False, n_predict=24)[0] for name, lora in SETS.items()
    }
    found: dict[str, str] = {}

    def run(name: str) -> None:
        found[name] = ask(adapted, prompt, SETS[name], cache_prompt=False, n_predict=24)[0]

    threads = [threading.Thread(target=run, args=(name,)) for name in SETS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


def test_adapters_come_and_go_while_the_server_runs(adapted: Server) -> None:
    url = f"{adapted.url}/lora-adapters"
    before = httpx.get(url).json()
    loaded = adapted.post("/lora-adapters/load", name="c.gguf")
    wish = [{"id": loaded["id"], "scale": 1.0}]
    assert (
        ask(adapted, PROMPT, wish, cache_prompt=False)[0] != ask(adapted, PROMPT, BASE, cache_prompt=False)[0]
    )
    assert httpx.post(f"{url}/load", json={"name": "damaged.gguf"}).status_code == 400
    adapted.post("/lora-adapters/unload", id=loaded["id"])
    assert httpx.get(url).json() == before
    assert (
        ask(adapted, PROMPT, wish, cache_prompt=False)[0] == ask(adapted, PROMPT, BASE, cache_prompt=False)[0]
    )


def test_more_adapters_than_the_server_runs_at_once_are_refused(adapted: Server) -> None:
    loaded = adapted.post("/lora-adapters/load", name="c.gguf")
    wish = [{"id": id, "scale": 1.0} for id in (0, 1, loaded["id"])]
    answer = httpx.post(f"{adapted.url}/completion", json={"prompt": "x", "lora": wish})
    assert answer.status_code == 400 and "--max-loras is 2" in answer.json()["error"]["message"]
    adapted.post("/lora-adapters/unload", id=loaded["id"])


def test_counters_and_slots_tell_the_adapters(adapted: Server) -> None:
    ask(adapted, PROMPT, SETS["half A"], id_slot=0)
    assert adapted.slots()[0]["lora"] == [{"id": 0, "scale": 0.5}]
    text = httpx.get(f"{adapted.url}/metrics").text
    assert 'mlxserver:lora_requests_total{adapter="0"}' in text


# ----------------------------------------------------------------- KV events


class Router:
    """Follows the stream of events as docs/kv-events.md tells."""

    def __init__(self, server: Server) -> None:
        self.start: dict[str, Any] = {}
        self.stored: dict[str, dict[str, Any]] = {}
        self._server = server

    @contextmanager
    def following(self) -> Iterator[Router]:
        with httpx.stream("GET", f"{self._server.url}/kv-events", timeout=60) as stream:
            reading = threading.Thread(target=self._read, args=(stream,), daemon=True)
            reading.start()
            wait_until("the stream begins", lambda: bool(self.start), 30)
            yield self

    def _read(self, stream: httpx.Response) -> None:
        name = ""
        try:
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self._take(name, json.loads(line.removeprefix("data: ")))
        except (httpx.StreamError, httpx.TransportError):
            pass  # the test is over

    def _take(self, name: str, data: dict[str, Any]) -> None:
        if name == "start":
            self.start = data
        elif name == "stored":
            self.stored |= {block["hash"]: block | data for block in data["blocks"]}
        elif name == "removed":
            for block in data["blocks"]:
                self.stored.pop(block["hash"], None)

    def chain(self, tokens: list[int], adapters: list[list[Any]]) -> list[str]:
        """The hashes of the full blocks of a prompt."""
        key = json.dumps({"adapters": adapters}, separators=(",", ":")).encode() if adapters else b""
        parent, size = bytes.fromhex(self.start["root"]), self.start["block_size"]
        hashes = []
        for i in range(0, len(tokens) - size + 1, size):
            packed = struct.pack(f"<{size + 1}I", size, *tokens[i : i + size])
            parent = hashlib.sha256(parent + packed + key).digest()
            hashes.append(parent.hex())
        return hashes


def test_a_router_can_tell_what_is_stored_for_whom(adapted: Server) -> None:
    prompt = "Whoever routes requests wants to know who has the prompt already. " * 8
    tokens = adapted.post("/tokenize", content=prompt)["tokens"]
    router = Router(adapted)
    with router.following():
        ask(adapted, prompt, BASE)
        expected = router.chain(tokens, [])
        wait_until("the blocks are told", lambda: set(expected) <= set(router.stored), 30)
        assert {router.stored[each]["adapter_id"] for each in expected} == {""}
        before = set(router.stored)
        ask(adapted, prompt, SETS["A"])
        n = len(expected)
        wait_until("the adapter's blocks are told", lambda: len(set(router.stored) - before) >= n, 30)
        adapted_blocks = [block for each, block in router.stored.items() if each not in before]
        assert len({block["adapter_id"] for block in adapted_blocks}) == 1
        digest = next(each["digest"] for each in router.start["adapters"] if each["id"] == 0)
        assert {block["hash"] for block in adapted_blocks} == set(router.chain(tokens, [[digest, 1.0]]))
        assert adapted_blocks[0]["parent"] == router.start["root"], "apart from the first block on"


def test_who_comes_later_is_told_what_is_stored(adapted: Server) -> None:
    prompt = "Somebody who comes late wants to hear it all the same, from the beginning. " * 6
    tokens = adapted.post("/tokenize", content=prompt)["tokens"]
    ask(adapted, prompt, BASE)
    router = Router(adapted)
    with router.following():
        expected = router.chain(tokens, [])
        wait_until("the blocks are told", lambda: set(expected) <= set(router.stored), 30)


def test_hashes_do_not_depend_on_whether_there_are_adapters(
    adapted: Server, smollm2: Path, folder: Path
) -> None:
    router = Router(adapted)
    with router.following(), running_server(smollm2, folder / "plain", "-c", "512", "--kv-events") as plain:
        other = Router(plain)
        with other.following():
            same = ("root", "block_size")
            assert [other.start[key] for key in same] == [router.start[key] for key in same]
