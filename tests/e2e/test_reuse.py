"""Prompts are not evaluated twice, and reuse never changes an answer, on the real model over HTTP."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import Server, running_server, wait_until

SYSTEM = "You are the helpful clerk of a small library. " * 40
QUESTIONS = [
    "Which book do you like?",
    "Who wrote it?",
    "When was that?",
    "Is it long?",
    "Name another one.",
    "Thank you. Goodbye!",
]
STORY = "The keeper of the lighthouse wrote down the weather every morning before breakfast. " * 20


def chat(server: Server, messages: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
    return server.post("/v1/chat/completions", messages=messages, temperature=0, **fields)


def cached_share(answer: dict[str, Any]) -> float:
    usage = answer["usage"]
    return float(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])


def together(work: list[Any]) -> None:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_turns_of_a_chat_are_evaluated_once(server: Server, figure: list[str]) -> None:
    messages = [{"role": "system", "content": SYSTEM}]
    shares = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = chat(server, messages, max_tokens=24)
        shares.append(cached_share(answer))
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    figure.append(f"6-turn chat: at least {min(shares[1:]):.1%} of each later turn's prompt from the cache")
    assert min(shares[1:]) >= 0.95


def test_chats_that_arrive_together_share_their_system_prompt(server: Server, figure: list[str]) -> None:
    system = "Answer like the captain of a river boat who has seen every bend. " * 24
    answers: list[dict[str, Any]] = []
    questions = [f"Question {i}: what is {i} plus {i}?" for i in range(8)]

    def ask(question: str) -> None:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        answers.append(chat(server, messages, max_tokens=4))

    together([lambda question=question: ask(question) for question in questions])
    usages = [answer["usage"] for answer in answers]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    total = sum(usage["prompt_tokens"] for usage in usages)
    longest = max(usage["prompt_tokens"] for usage in usages)
    figure.append(
        f"8 chats together: {cached / total:.1%} of their prompts from the cache ({7 / 8:.1%} at best)"
    )
    assert cached >= 0.94 * (total - longest)


def test_answers_from_the_cache_equal_cold_ones(server: Server) -> None:
    """Identical, longer, shorter and diverging prompts."""
    ids = server.post("/tokenize", content=STORY)["tokens"][:160]
    prompts = [
        ids,
        ids,
        [*ids, 28, 284, 260],
        ids[:90],
        *(ids[:cut] + [3477, 284, 2060] for cut in range(5, 160, 16)),
    ]
    for prompt in prompts:
        warm = server.post("/completion", prompt=prompt, n_predict=8, temperature=0, n_probs=1)
        cold = server.post(
            "/completion", prompt=prompt, n_predict=8, temperature=0, n_probs=1, cache_prompt=False
        )
        assert cold["timings"]["cache_n"] == 0
        assert warm["content"] == cold["content"]
        for one, other in zip(
            warm["completion_probabilities"], cold["completion_probabilities"], strict=True
        ):
            assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)


def test_timings_of_a_hit(server: Server, figure: list[str]) -> None:
    prompt = "No two days in the harbour were alike, said the old woman. " * 110
    cold = server.post("/completion", prompt=prompt, n_predict=1, id_slot=0, temperature=0)["timings"]
    server.post("/completion", prompt="Something else entirely.", n_predict=1, id_slot=0, temperature=0)
    hit = server.post("/completion", prompt=prompt, n_predict=1, id_slot=0, temperature=0)["timings"]
    assert hit["cache_n"] == cold["prompt_n"] - 1
    share = hit["prompt_ms"] / cold["prompt_ms"]
    figure.append(f"a hit on {hit['cache_n']} tokens costs {share:.2%} of their evaluation")


def test_one_slot_keeps_a_long_prompt_behind_a_short_one(smollm2: Path, tmp_path: Path) -> None:
    arguments = "-c 2048 -np 1 -ctk f32 -ctv f32 --slots --metrics".split()
    with running_server(smollm2, tmp_path / "log", *arguments) as server:
        long = server.post("/tokenize", content=STORY)["tokens"]
        server.post("/completion", prompt=long, n_predict=1)
        server.post("/completion", prompt=long[: len(long) // 10] + [28, 300], n_predict=1)
        again = server.post("/completion", prompt=[*long, 28], n_predict=1)
        assert again["timings"]["cache_n"] == len(long)
        drop_of_a_waiting_client(server)


def drop_of_a_waiting_client(server: Server) -> None:
    """A queued client that goes away while another request streams is dropped at once."""
    body = {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + "/completion", json=body, timeout=60) as stream:
        lines = stream.iter_lines()  # closes the stream when it is dropped
        next(lines)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.url + "/completion", json={"prompt": "Two", "n_predict": 1}, timeout=0.5)
        wait_until("nobody waits", lambda: server.metric("requests_deferred") == 0, 5)
        assert len(server.busy()) == 1


def test_agents_in_turn_over_four_slots(server: Server) -> None:
    talks = [f"Agent {i} keeps a diary of its own. " * 12 for i in range(5)]
    for turn in range(3):
        for i, talk in enumerate(talks):
            answer = server.post("/completion", prompt=talk, n_predict=6, temperature=0)
            if turn:
                assert answer["timings"]["cache_n"] >= 0.9 * answer["tokens_evaluated"]
            talks[i] = talk + answer["content"] + " And then?"


def test_a_prefix_of_a_busy_slot_and_a_pinned_empty_slot(server: Server) -> None:
    prompt = "A prefix that is in use by a stream at this very moment. " * 8
    body = {"prompt": prompt, "n_predict": 200, "ignore_eos": True, "stream": True, "id_slot": 1}
    with httpx.stream("POST", server.url + "/completion", json=body, timeout=60) as stream:
        lines = stream.iter_lines()  # closes the stream when it is dropped
        next(lines)
        answer = server.post("/completion", prompt=prompt + "Yes.", n_predict=1, id_slot=2)
        assert answer["timings"]["cache_n"] >= 0.95 * answer["tokens_evaluated"]
    wait_until("the stream's slot is free", lambda: not server.busy(), 10)


def test_the_budget_holds(smollm2: Path, tmp_path: Path, figure: list[str]) -> None:
    arguments = "-c 1024 -np 2 -ctk f32 -ctv f32 --cache-ram 64 --metrics --slots".split()
    with running_server(smollm2, tmp_path / "log", *arguments) as server:
        held = []
        for i in range(300):
            prompt = [(i * 97 + j * 31) % 40000 + 100 for j in range(24)]
            server.post("/completion", prompt=prompt, n_predict=1)
            text = httpx.get(f"{server.url}/metrics", timeout=30).text
            held.append(float(text.split("\nmlxserver:cache_bytes ")[1].split("\n")[0]))
        assert max(held) <= 64 * 2**20
        assert max(held) > 32 * 2**20
        figure.append(f"--cache-ram 64: at most {max(held) / 2**20:.1f} MiB held over 300 unique prompts")
