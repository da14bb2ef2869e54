"""Reuse never changes an answer: every warm output equals the cold one, for every cache kind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mlxserver.engine.task import Started, Token
from mlxserver.kv.identity import CacheIdentity
from tests.engine.bench import GREEDY, Bench, oracle
from tests.models import tiny

KINDS = ["llama", "mistral_sliding", "gemma3", "gpt_oss", "mamba2", "qwen3_next", "falcon_h1", "deepseek_v3"]
PLAIN = {"llama", "deepseek_v3"}
N = 10
BASE = [(11 * i + 5) % 250 for i in range(48)]


class Served:
    """An engine and the model that it serves, to ask for cold answers."""

    def __init__(self, kind: str, **changes: Any) -> None:
        self.kind = kind
        self.module = getattr(tiny, kind)()
        self.bench = Bench(getattr(tiny, kind), **changes)
        self.ids = iter(range(10**6))

    def send(self, prompt: list[int], n: int = N, **fields: Any) -> int:
        task_id = next(self.ids)
        self.bench.submit(task_id, prompt, n_predict=n, **fields)
        return task_id

    def ask(self, prompt: list[int], n: int = N, **fields: Any) -> tuple[list[int], int]:
        """The tokens and how many of the prompt's were reused."""
        task_id = self.send(prompt, n, **fields)
        (tokens,) = self.bench.finish(task_id)
        return tokens, self.bench.of(task_id, Started)[0].n_past

    def cold(self, prompt: list[int], n: int = N) -> list[int]:
        return oracle(self.module, prompt, n)


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    served = Served(request.param)
    yield served
    served.bench.close()


def test_identical_longer_and_shorter_prompts(served: Served) -> None:
    want = served.cold(BASE)
    assert served.ask(BASE)[0] == want
    tokens, reused = served.ask(BASE)
    assert tokens == want
    assert reused == len(BASE) - 1
    longer = BASE + want + [3, 1, 4]
    tokens, reused = served.ask(longer)
    assert tokens == served.cold(longer)
    assert reused >= len(BASE) - 1
    assert served.ask(BASE[:30])[0] == served.cold(BASE[:30])
    assert served.ask(longer)[0] == served.cold(longer)


def test_prompts_that_diverge_at_each_of_twenty_positions(served: Served) -> None:
    served.ask(BASE)
    for cut in range(1, 41, 2):
        other = BASE[:cut] + [(7 * i + cut) % 250 for i in range(12)]
        tokens, reused = served.ask(other)
        assert tokens == served.cold(other), f"diverging at {cut}"
        if served.kind in PLAIN:
            assert reused >= cut - 1
    assert served.ask(BASE)[0] == served.cold(BASE)


def test_log_probabilities_of_warm_outputs(served: Served) -> None:
    asks = replace(GREEDY, n_probs=2)
    for prompt in (BASE, BASE[:25] + [9, 8, 7], BASE + [1, 2, 3]):
        served.ask(prompt, sampling=asks)
        values = []
        for cache_prompt in (True, False):
            task = served.send(prompt, sampling=asks, cache_prompt=cache_prompt)
            served.bench.finish(task)
            tokens = served.bench.of(task, Token)
            values.append([each.value for token in tokens for each in token.probs.top])
        assert values[0] == pytest.approx(values[1], abs=1e-4)


def test_in_a_batch_of_four_with_others(served: Served) -> None:
    served.ask(BASE)
    prompts = [BASE, BASE[:20] + [9, 9, 9], [5, 6, 7, 8], BASE + [1, 2]]
    tasks = [served.send(prompt) for prompt in prompts]
    assert served.bench.finish(*tasks) == [served.cold(prompt) for prompt in prompts]


def test_prompts_of_one_token_beside_running_streams(served: Served) -> None:
    """Nothing is evaluated before their first step: their row is empty, whatever the slot held before."""
    prompts = [BASE, [5], [6], BASE[:7]]
    for slots in ((0, 1, 2, 3), (3, 2, 1, 0)):
        running = served.send(prompts[0], 30, id_slot=slots[0])
        served.bench.wait(lambda task=running: served.bench.of(task, Token))
        others = [served.send(prompts[i], 12, id_slot=slots[i]) for i in (1, 2, 3)]
        want = [served.cold(BASE, 30), *(served.cold(prompt, 12) for prompt in prompts[1:])]
        assert served.bench.finish(running, *others) == want


def test_after_eviction(served: Served) -> None:
    tight = Served(served.kind, cache_ram=1, n_slots=1)
    rng = random.Random(5)
    for _ in range(24):
        tight.ask([rng.randrange(250) for _ in range(200)], 1)
    assert tight.ask(BASE)[0] == served.cold(BASE)
    assert tight.ask(BASE)[0] == served.cold(BASE)
    tight.bench.close()


def test_one_slot_many_conversations_in_turn() -> None:
    """Agents called round-robin over too few slots find their state again."""
    for kind in ("llama", "gemma3", "mamba2", "qwen3_next"):
        served = Served(kind, n_slots=2)
        talks = [[(i * 37 + j * 5) % 250 for j in range(40)] for i in range(5)]
        for turn in range(3):
            for i, talk in enumerate(talks):
                tokens, reused = served.ask(talk)
                assert tokens == served.cold(talk), kind
                if turn:
                    assert reused >= 0.8 * (len(talk) - 14), kind
                talks[i] = [*talk, *tokens, 7, 8, 9, turn]
        served.bench.close()


def test_random_schedules_give_cold_answers(served: Served) -> None:
    rng = random.Random(11)
    roots = [[rng.randrange(250) for _ in range(30)] for _ in range(3)]
    for _ in range(12):
        prompts = []
        for _ in range(rng.randrange(1, 5)):
            root = rng.choice(roots)
            prompts.append(
                root[: rng.randrange(1, 30)] + [rng.randrange(250) for _ in range(rng.randrange(1, 6))]
            )
        tasks = [served.send(prompt, 4) for prompt in prompts]
        for prompt, tokens in zip(prompts, served.bench.finish(*tasks), strict=True):
            assert tokens == served.cold(prompt, 4), served.kind


def test_cancelled_prompts_leave_what_they_evaluated() -> None:
    served = Served("llama", n_slots=1, n_ctx_slot=4096, n_batch=32)
    long = [(i * 13) % 250 for i in range(1500)]
    task = served.send(long)
    served.bench.wait(lambda: bool(served.bench.engine.snapshot().counters.prompt_tokens > 64))
    from mlxserver.engine.mailbox import Cancel

    served.bench.engine.post(Cancel(task))
    tokens, reused = served.ask(long)
    assert reused >= 32
    assert tokens == served.cold(long)
    served.bench.close()


def test_nothing_crosses_identities() -> None:
    served = Served("llama")
    served.ask(BASE)
    for identity in (CacheIdentity(tenant="a"), CacheIdentity(tenant="b")):
        assert served.ask(BASE, identity=identity) == (served.cold(BASE), 0)
        assert served.ask(BASE, identity=identity)[1] == len(BASE) - 1
    assert served.ask(BASE)[1] == len(BASE) - 1
    served.bench.close()


def test_prompts_that_arrive_together_evaluate_their_common_part_once() -> None:
    served = Served("llama", n_slots=8, n_ctx_slot=2048, n_batch=64)
    system = [(i * 29) % 250 for i in range(500)]
    prompts = [system + [200 + i, 3, 5] for i in range(8)]
    tasks = [served.send(prompt, 4) for prompt in prompts]
    assert served.bench.finish(*tasks) == [served.cold(prompt, 4) for prompt in prompts]
    reused = [served.bench.of(task, Started)[0].n_past for task in tasks]
    assert sum(reused) / sum(map(len, prompts)) >= 7 / 8 * 0.99
    served.bench.close()


def test_a_busy_slots_prefix_is_used_by_another_slot_meanwhile() -> None:
    served = Served("llama", n_slots=2)
    busy = served.send(BASE, 300)
    served.bench.wait(lambda: bool(served.bench.engine.snapshot().counters.prompt_tokens))
    tokens, reused = served.ask([*BASE, 8, 9])
    assert reused == len(BASE)
    assert tokens == served.cold([*BASE, 8, 9])
    assert served.bench.finish(busy)[0] == served.cold(BASE, 300)
    served.bench.close()


def test_a_pinned_empty_slot_uses_the_cache_like_any_other() -> None:
    served = Served("llama", n_slots=4)
    served.ask(BASE, id_slot=3)
    assert served.ask(BASE, id_slot=0) == (served.cold(BASE), len(BASE) - 1)
    served.bench.close()


def test_a_short_prompt_between_does_not_cost_the_long_one() -> None:
    served = Served("llama", n_slots=1)
    long = [(i * 17) % 250 for i in range(300)]
    served.ask(long)
    served.ask(long[:30] + [1, 2, 3])
    tokens, reused = served.ask(long + [4])
    assert (tokens, reused) == (served.cold(long + [4]), len(long))
    served.bench.close()


def test_bytes_stay_below_the_cap() -> None:
    served = Served("llama", n_slots=2, cache_ram=1)
    rng = random.Random(3)
    for _ in range(60):
        served.ask([rng.randrange(250) for _ in range(150)], 1)
        assert served.bench.engine.snapshot().cache.nbytes <= 2**20
    assert served.bench.engine.snapshot().cache.evictions > 0
    served.bench.close()
