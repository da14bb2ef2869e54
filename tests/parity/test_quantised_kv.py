"""Quantised KV: reuse, batches, moves and files give what a single cold run under the same KV type gives."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxserver.engine.mailbox import SlotAction, SlotOutcome
from mlxserver.engine.task import Started
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from mlxserver.models.load import ModelSource, load_model
from tests.engine.bench import Bench, oracle
from tests.models import tiny

TYPES = [("q8_0", "q8_0"), ("q8_0", "f32"), ("q5_0", "q4_1"), ("q4_0", "q5_1")]
BASE = [(11 * i + 5) % 250 for i in range(48)]
N = 10


def llama() -> Any:
    return tiny.llama(head_dim=32)


def states_of(module: Any, n_slots: int, types: tuple[str, str]) -> SlotStates:
    return SlotStates(cache_maker(module), n_slots, *(KV_TYPES[name] for name in types))


class Served:
    """An engine under KV types, and cold answers from single runs under the same ones."""

    def __init__(self, types: tuple[str, str], build: Any = llama, **changes: Any) -> None:
        self.types = types
        self.module = build()
        self.bench = Bench(build, cache_type_k=types[0], cache_type_v=types[1], **changes)
        self.ids = iter(range(10**6))

    def send(self, prompt: list[int], n: int = N, **fields: Any) -> int:
        task_id = next(self.ids)
        self.bench.submit(task_id, prompt, n_predict=n, **fields)
        return task_id

    def ask(self, prompt: list[int], **fields: Any) -> tuple[list[int], int]:
        task_id = self.send(prompt, **fields)
        (tokens,) = self.bench.finish(task_id)
        return tokens, self.bench.of(task_id, Started)[0].n_past

    def cold(self, prompt: list[int], n: int = N) -> list[int]:
        states = states_of(self.module, 1, self.types)
        self.module(mx.array([prompt[:-1]]), cache=states.prompt_chunk(0, len(prompt) - 1))
        token, out = prompt[-1], []
        for _ in range(n):
            logits = self.module(mx.array([[token]]), cache=states.prompt_chunk(0, 1))[0, -1]
            token = int(mx.argmax(logits).item())
            out.append(token)
        return out

    def act(self, kind: Any, slot: int, path: Path) -> SlotOutcome:
        replies: queue.SimpleQueue[SlotOutcome] = queue.SimpleQueue()
        self.bench.engine.post(SlotAction(kind, slot, path, replies.put))
        return replies.get(timeout=60)


@pytest.fixture(scope="module", params=TYPES, ids="-".join)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    served = Served(request.param)
    yield served
    served.bench.close()


def logits_after(module: Any, states: SlotStates, slot: int, tokens: list[int]) -> mx.array:
    logits: mx.array = module(mx.array([tokens]), cache=states.prompt_chunk(slot, len(tokens)))
    return logits


@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_a_chunk_reads_back_what_it_wrote(types: tuple[str, str]) -> None:
    """So a prefix that was taken over gives bit for bit what it gives where it was evaluated."""
    module = llama()
    states = states_of(module, 2, types)
    logits_after(module, states, 0, BASE[:30])
    cold = logits_after(module, states, 0, BASE[30:])
    first, second = states.read_span(0, 0, 30).split(17)
    states.write_span(1, 0, first)
    states.write_span(1, 17, second)
    assert mx.array_equal(logits_after(module, states, 1, BASE[30:]), cold)
    states.truncate(0, 30)
    assert mx.array_equal(logits_after(module, states, 0, BASE[30:]), cold)


@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_quantisation_has_an_effect(types: tuple[str, str]) -> None:
    """Else nothing here would be shown."""
    module = llama()
    plain = logits_after(module, states_of(module, 1, ("f32", "f32")), 0, BASE)
    other = logits_after(module, states_of(module, 1, types), 0, BASE)
    difference = mx.abs(plain - other).max().item()
    assert 1e-3 < difference < 10


def test_prefix_hits_equal_cold_answers(served: Served) -> None:
    assert served.ask(BASE)[0] == served.cold(BASE)
    assert served.ask(BASE) == (served.cold(BASE), len(BASE) - 1)
    for cut in range(1, 41, 4):
        other = BASE[:cut] + [(7 * i + cut) % 250 for i in range(12)]
        tokens, reused = served.ask(other)
        assert tokens == served.cold(other), f"diverging at {cut}"
        assert reused >= cut - 1


def test_a_batch_of_four_equals_single_runs(served: Served) -> None:
    prompts = [BASE, BASE[:20] + [9, 9, 9], [5, 6, 7, 8], [200, 3]]
    tasks = [served.send(prompt) for prompt in prompts]
    assert served.bench.finish(*tasks) == [served.cold(prompt) for prompt in prompts]


def test_one_slot_many_conversations_in_turn() -> None:
    served = Served(("q8_0", "q4_0"), n_slots=2)
    talks = [[(i * 37 + j * 5) % 250 for j in range(40)] for i in range(4)]
    for turn in range(3):
        for i, talk in enumerate(talks):
            tokens, reused = served.ask(talk)
            assert tokens == served.cold(talk)
            assert not turn or reused >= len(talk) - 5
            talks[i] = [*talk, *tokens, 7, 8, 9, turn]
    served.bench.close()


@pytest.mark.parametrize(("name", "ratio"), [("q8_0", 9 / 32), ("q5_1", 6 / 32), ("q4_0", 5 / 32)])
def test_spans_stay_quantised_in_the_trie(name: str, ratio: float) -> None:
    sizes = []
    for kind in (name, "f32"):
        served = Served((kind, kind), n_slots=1)
        served.ask(BASE)
        served.ask([1, 2, 3])
        tokens, reused = served.ask(BASE)
        assert (tokens, reused) == (served.cold(BASE), len(BASE) - 1)
        served.ask([4, 5, 6])
        sizes.append(served.bench.engine.snapshot().cache.nbytes)
        served.bench.close()
    assert sizes[1] > 0
    assert sizes[0] / sizes[1] == ratio


@pytest.mark.parametrize("kind", ["gemma3", "qwen3_next"])
def test_models_with_other_layers_quantise_the_plain_ones(kind: str) -> None:
    build = getattr(tiny, kind)
    served = Served(("q8_0", "q5_0"), lambda: build(head_dim=32))
    want = served.cold(BASE)
    assert served.ask(BASE)[0] == want
    assert served.ask(BASE)[0] == want
    longer = [*BASE, *want, 3, 1, 4]
    assert served.ask(longer)[0] == served.cold(longer)
    served.bench.close()


def test_keys_and_values_of_unequal_widths() -> None:
    served = Served(("q8_0", "q5_0"), lambda: tiny.deepseek_v3(kv_lora_rank=64, qk_rope_head_dim=32))
    for prompt in (BASE, BASE, BASE[:20] + [1, 2]):
        assert served.ask(prompt)[0] == served.cold(prompt)
    served.bench.close()


def test_files_keep_the_quantised_state(served: Served, tmp_path: Path) -> None:
    served.ask(BASE, id_slot=0)
    saved = served.act("save", 0, tmp_path / "state")
    assert saved.error == ""
    other = Served(served.types)
    restored = other.act("restore", 2, tmp_path / "state")
    assert (restored.error, restored.n_tokens) == ("", saved.n_tokens)
    longer = [*BASE, *served.cold(BASE), 1, 2, 3]
    assert other.ask(longer, id_slot=2) == (served.cold(longer), saved.n_tokens)
    other.bench.close()


def test_files_of_other_types_are_refused(tmp_path: Path) -> None:
    """q4_0 and q4_1 are held alike, but a file says whose it is."""
    served = Served(("q4_0", "q4_0"))
    served.ask(BASE, id_slot=0)
    served.act("save", 0, tmp_path / "state")
    served.bench.close()
    for types in (("q4_1", "q4_0"), ("q8_0", "q4_0"), ("f32", "f32")):
        other = Served(types)
        other.ask([1, 2, 3], id_slot=0)
        assert other.act("restore", 0, tmp_path / "state").error.endswith("other KV types")
        assert other.ask([1, 2, 3], id_slot=0)[0] == other.cold([1, 2, 3])
        other.bench.close()


def test_plain_types_go_on_as_they_were() -> None:
    served = Served(("f32", "f32"))
    assert served.ask(BASE)[0] == served.cold(BASE) == oracle(served.module, BASE, N)
    served.bench.close()


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("name", "most", "agreed"), [("q8_0", 0.4, 190), ("q5_1", 2.5, 165), ("q4_0", 4.0, 140)]
)
def test_log_probabilities_of_a_real_model(smollm2: Path, name: str, most: float, agreed: int) -> None:
    """Against 32-bit floats over 200 tokens of given text: about twice what was measured."""
    model, _ = load_model(ModelSource(path=str(smollm2)), "float32")
    tokens = model.tokenizer.encode(
        (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    )[:201]
    following = mx.array(tokens[1:])[:, None]

    def logprobs(kind: str) -> mx.array:
        logits = logits_after(model.module, states_of(model.module, 1, (kind, kind)), 0, tokens[:200])[0]
        return logits - mx.logsumexp(logits, axis=-1, keepdims=True)

    plain, other = logprobs("f32"), logprobs(name)
    differences = mx.abs(mx.take_along_axis(plain - other, following, axis=-1))
    assert 0.01 < differences.max().item() < most
    assert (mx.argmax(plain, axis=-1) == mx.argmax(other, axis=-1)).sum().item() >= agreed
