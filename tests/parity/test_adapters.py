"""Every row gives what its own adapters give alone, and no state crosses from one set to another."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.nn as nn
import pytest

from mlxserver.engine.forward_pass import ForwardPass
from mlxserver.engine.mailbox import AdapterInfo, Cancel, LoadAdapter, SlotAction, SlotOutcome, UnloadAdapter
from mlxserver.engine.plan import Chunk
from mlxserver.engine.task import Failed, PromptProgress, Token
from mlxserver.kv.identity import Adapters
from tests.models import tiny
from tests.parity.adapted import Adapted, N

PROMPT = [(13 * i + 7) % 250 for i in range(70)]


def quantised() -> nn.Module:
    module = tiny.llama(intermediate_size=64)
    nn.quantize(module, group_size=32, bits=4)
    return module


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "llama": tiny.llama,
    "quantised": quantised,
    "sliding": tiny.gemma3,
    "hybrid": tiny.qwen3_next,
    "recurrent": tiny.mamba2,
    "mla": tiny.deepseek_v3,
}


@pytest.fixture(params=BUILDS)
def adapted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Adapted]:
    served = Adapted(monkeypatch, BUILDS[request.param], n_slots=6)
    yield served
    served.bench.close()


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> Iterator[Adapted]:
    served = Adapted(monkeypatch, tiny.llama, n_slots=2, n_ctx_slot=512)
    yield served
    served.bench.close()


def test_adapters_change_the_answers(llama: Adapted) -> None:
    """Else nothing here would be shown."""
    answers = [tuple(llama.cold(PROMPT, adapters)) for adapters in llama.sets()]
    assert len(set(answers)) == len(answers)


def test_rows_of_a_mixed_batch_give_what_they_give_alone(adapted: Adapted) -> None:
    sets = adapted.sets()
    prompts = [PROMPT[: 20 + 9 * i] for i in range(len(sets))]
    ids = [adapted.send(prompt, adapters) for prompt, adapters in zip(prompts, sets, strict=True)]
    together = adapted.bench.finish(*ids)
    assert together == [adapted.cold(p, adapters) for p, adapters in zip(prompts, sets, strict=True)]


def test_what_overflows_stays_in_its_own_row(adapted: Adapted) -> None:
    """Its state lies behind that of shorter rows in later batches, where a mask multiplies it by 0."""
    overflow = ((adapted.a, 3e38),)
    for slot in range(3):
        adapted.ask([slot, *PROMPT], overflow, id_slot=slot)
    prompts = [PROMPT, PROMPT[:7], PROMPT[:40]]
    ids = [adapted.send(prompt, id_slot=slot) for slot, prompt in enumerate(prompts)]
    assert adapted.bench.finish(*ids) == [adapted.cold(prompt) for prompt in prompts]
    adapted.send([9, *PROMPT], overflow, id_slot=0)
    sets = adapted.sets()[1:3]
    ids = [adapted.send([8, *PROMPT[:9]], adapters) for adapters in sets]
    assert adapted.bench.finish(*ids) == [adapted.cold([8, *PROMPT[:9]], adapters) for adapters in sets]


def test_the_same_prompt_is_reused_within_a_set_and_never_across(adapted: Adapted) -> None:
    for turn in range(2):
        for adapters in adapted.sets():
            tokens, reused = adapted.ask(PROMPT, adapters)
            assert tokens == adapted.cold(PROMPT, adapters)
            assert reused == (turn and len(PROMPT) - 1), adapters


def test_a_prompt_shorter_than_a_block(adapted: Adapted) -> None:
    for turn in range(2):
        for adapters in adapted.sets():
            tokens, reused = adapted.ask(PROMPT[:5], adapters)
            assert (tokens, reused) == (adapted.cold(PROMPT[:5], adapters), turn and 4)


def test_growing_conversations_stay_apart(llama: Adapted) -> None:
    """Each set's conversation goes on in turn, in two slots that six sets want."""
    talks = {adapters: PROMPT[:10] for adapters in llama.sets()}
    for turn in range(4):
        for adapters, talk in talks.items():
            tokens, reused = llama.ask(talk, adapters)
            assert tokens == llama.cold(talk, adapters)
            assert reused >= (turn and len(talk) - 5)
            talks[adapters] = [*talk, *tokens[:-1], turn, 1, 2, 3]


def test_eviction_to_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = Adapted(monkeypatch, tiny.llama, n_slots=2, cache_ram=1)
    for round in range(12):
        for adapters in llama.sets():
            prompt = [round, *[(i * (round + 3)) % 250 for i in range(200)]]
            assert llama.ask(prompt, adapters, n=4)[0] == llama.cold(prompt, adapters, n=4)
    stats = llama.bench.engine.snapshot().cache
    assert stats.evictions > 0 and stats.nbytes <= 2**20
    llama.bench.close()


def test_live_slots_are_matched_within_their_set_only(llama: Adapted) -> None:
    base, a, *_ = llama.sets()
    running = llama.send(PROMPT, a, n=200)
    llama.bench.wait(lambda: any(isinstance(e, Token) and e.task_id == running for e in llama.bench.events))
    assert llama.ask(PROMPT, base) == (llama.cold(PROMPT, base), 0)
    assert llama.ask(PROMPT, a) == (llama.cold(PROMPT, a), len(PROMPT) - 1)
    llama.bench.engine.post(Cancel(running))


def test_cancelled_prompts(llama: Adapted) -> None:
    base, a, b, *_ = llama.sets()
    long = [(7 * i) % 250 for i in range(400)]
    task = llama.send(long, a, return_progress=True)
    llama.bench.wait(
        lambda: any(
            isinstance(e, PromptProgress) and e.task_id == task and e.processed >= 64
            for e in llama.bench.events
        )
    )
    llama.bench.engine.post(Cancel(task))
    for adapters in (base, b):
        assert llama.ask(long, adapters) == (llama.cold(long, adapters), 0)
    tokens, reused = llama.ask(long, a)
    assert tokens == llama.cold(long, a) and reused >= 64


def act(adapted: Adapted, kind: Any, slot: int, path: Path) -> SlotOutcome:
    replies: queue.SimpleQueue[SlotOutcome] = queue.SimpleQueue()
    adapted.bench.engine.post(SlotAction(kind, slot, path, replies.put))
    return replies.get(timeout=60)


def test_slot_files_belong_to_their_set(
    llama: Adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, a, _, half, both, _ = llama.sets()
    llama.ask(PROMPT, a, id_slot=0)
    assert not act(llama, "save", 0, tmp_path / "a").error
    again = Adapted(monkeypatch, tiny.llama, n_slots=2)
    assert not act(again, "restore", 1, tmp_path / "a").error
    for adapters in (base, half, both):
        assert again.ask(PROMPT, adapters, id_slot=0) == (again.cold(PROMPT, adapters), 0)
    assert again.ask(PROMPT, a, id_slot=0) == (again.cold(PROMPT, a), len(PROMPT) - 1)
    again.bench.close()


def test_moved_chunks_stay_within_their_set(llama: Adapted) -> None:
    base, a, *_ = llama.sets()
    edited = PROMPT[:20] + PROMPT[30:]
    llama.ask(PROMPT, a)
    assert llama.ask(edited, base, n_cache_reuse=8) == (llama.cold(edited, base), 0)
    assert llama.ask(edited, a, n_cache_reuse=8)[1] > 20
    assert llama.ask(edited, a) == (llama.cold(edited, a), 20)


def test_completions_of_one_prompt_share_their_set(llama: Adapted) -> None:
    from mlxserver.sampling.params import SamplingParams

    _, a, *_ = llama.sets()
    task = llama.send(PROMPT, a, children=((10**7, SamplingParams(temperature=0.0)),))
    assert llama.bench.finish(task, 10**7) == [llama.cold(PROMPT, a)] * 2


def test_an_invoked_adapter_begins_in_the_prompt(adapted: Adapted) -> None:
    a = ((adapted.a, 1.0),)
    for begins_at in (0, 1, 33, len(PROMPT) - 1):
        want = adapted.cold(PROMPT, a, begins_at=begins_at)
        assert adapted.ask(PROMPT, invoked=a, invoked_at=begins_at)[0] == want
    assert adapted.ask(PROMPT)[0] == adapted.cold(PROMPT)
    assert adapted.ask(PROMPT, a)[0] == adapted.cold(PROMPT, a)


def test_a_checkpoint_of_an_invoked_prompt_takes_nothing_from_it(adapted: Adapted) -> None:
    """A window that has not wrapped can be cut where the adapter begins; the prompt itself goes on."""
    a = ((adapted.a, 1.0),)
    for n, begins_at in ((11, 4), (13, 4), (13, 1), (40, 8)):
        want = adapted.cold(PROMPT[:n], a, begins_at=begins_at)
        assert adapted.ask(PROMPT[:n], invoked=a, invoked_at=begins_at)[0] == want
        assert adapted.ask(PROMPT[:n])[0] == adapted.cold(PROMPT[:n])


def test_an_invoked_adapter_takes_over_the_base_models_state(llama: Adapted) -> None:
    a = ((llama.a, 1.0),)
    llama.ask(PROMPT)
    want = llama.cold(PROMPT, a, begins_at=40)
    assert llama.ask(PROMPT, invoked=a, invoked_at=40) == (want, 40)
    assert llama.ask(PROMPT) == (llama.cold(PROMPT), len(PROMPT) - 1)


def test_an_invoked_row_beside_others(llama: Adapted) -> None:
    a, b = ((llama.a, 1.0),), ((llama.b, 1.0),)
    ids = [llama.send(PROMPT[:30], b), llama.send(PROMPT, invoked=a, invoked_at=25)]
    assert llama.bench.finish(*ids) == [llama.cold(PROMPT[:30], b), llama.cold(PROMPT, a, begins_at=25)]


# --------------------------------------------------------- while it is running


def load(adapted: Adapted, path: str) -> AdapterInfo | str:
    replies: queue.SimpleQueue[AdapterInfo | str] = queue.SimpleQueue()
    adapted.bench.engine.post(LoadAdapter(path, replies.put))
    return replies.get(timeout=60)


def test_an_adapter_comes_and_goes_while_others_run(llama: Adapted) -> None:
    _, a, *_ = llama.sets()
    running = llama.send(PROMPT, a, n=60)
    info = load(llama, "3")
    assert isinstance(info, AdapterInfo)
    c = ((info.digest, 1.0),)
    used = llama.send(PROMPT, c, n=60)
    llama.bench.engine.post(UnloadAdapter(info.digest))
    one, other = llama.bench.finish(running, used)
    assert one == llama.cold(PROMPT, a, n=60)
    assert len(other) == 60 and other not in (one, llama.cold(PROMPT, n=60)), "it stays until its task ends"
    llama.ask(PROMPT[:5])  # one more round
    gone = llama.send(PROMPT, c)
    llama.bench.finish(gone)
    assert llama.bench.of(gone, Failed)
    assert llama.ask(PROMPT, a)[0] == llama.cold(PROMPT, a)


def test_the_same_file_again_finds_its_state_again(llama: Adapted) -> None:
    first = load(llama, "3")
    assert isinstance(first, AdapterInfo)
    c = ((first.digest, 1.0),)
    tokens, _ = llama.ask(PROMPT, c)
    llama.bench.engine.post(UnloadAdapter(first.digest))
    llama.ask(PROMPT[:5])
    second = load(llama, "3")
    assert isinstance(second, AdapterInfo) and second.digest == first.digest
    assert llama.ask(PROMPT, c) == (tokens, len(PROMPT) - 1)


def test_an_adapter_stays_until_all_who_loaded_it_gave_it_back(llama: Adapted) -> None:
    """One client's unloading may come between another's loading and its answer."""
    first, second = load(llama, "3"), load(llama, "3")
    assert isinstance(first, AdapterInfo) and first == second
    c = ((first.digest, 1.0),)
    tokens, _ = llama.ask(PROMPT, c)
    llama.bench.engine.post(UnloadAdapter(first.digest))
    llama.ask(PROMPT[:5])  # one more round
    assert llama.ask(PROMPT, c)[0] == tokens
    llama.bench.engine.post(UnloadAdapter(first.digest))
    llama.ask(PROMPT[:5])
    gone = llama.send(PROMPT, c)
    llama.bench.finish(gone)
    assert llama.bench.of(gone, Failed)


def test_a_file_that_is_none_changes_nothing(llama: Adapted, caplog: pytest.LogCaptureFixture) -> None:
    assert load(llama, "not a number") == "ValueError"
    assert llama.ask(PROMPT)[0] == llama.cold(PROMPT)
    assert len(llama.ask(PROMPT)[0]) == N


def test_prompts_of_one_pass_have_their_own_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unequal lengths; the first ones start behind a prefix that is there already."""
    passes: list[set[Adapters]] = []
    together = ForwardPass._ragged

    def noted(self: Any, slots: Any, tokens: Any, adapters: Any, chunks: list[Chunk]) -> Any:
        passes.append({chunk.adapters for chunk in chunks})
        return together(self, slots, tokens, adapters, chunks)

    adapted = Adapted(monkeypatch, tiny.llama, n_slots=7, n_batch=512, n_ubatch=512)
    sets = adapted.sets()
    prompts = [PROMPT[i : 30 + 4 * i] for i in range(len(sets))]
    for prompt, adapters in zip(prompts[:3], sets[:3], strict=True):
        adapted.ask(prompt[:7], adapters)
    monkeypatch.setattr(ForwardPass, "_ragged", noted)
    with adapted.bench.held(0):
        ids = [adapted.send(prompt, adapters, n=12) for prompt, adapters in zip(prompts, sets, strict=True)]
    found = adapted.bench.finish(*ids)
    assert found == [adapted.cold(prompt, each, 12) for prompt, each in zip(prompts, sets, strict=True)]
    assert passes == [set(sets)]
    assert [adapted.n_past(task_id) > 0 for task_id in ids] == [True] * 3 + [False] * 3
    adapted.bench.close()
