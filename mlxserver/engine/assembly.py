"""Builds the engine's parts around a model, once at the start and anew after an error that spoilt them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from mlxserver.engine.adapters import AdapterActions
from mlxserver.engine.batch_check import graphs_agree, ragged_agrees, rows_agree
from mlxserver.engine.block_watch import BlockWatch
from mlxserver.engine.cache_types import cache_types
from mlxserver.engine.compiled_steps import CompiledSteps
from mlxserver.engine.config import EngineConfig
from mlxserver.engine.embedder import Embedder
from mlxserver.engine.forward_pass import ForwardPass
from mlxserver.engine.mailbox import Wake
from mlxserver.engine.memory_probe import memory_costs
from mlxserver.engine.mover import Mover
from mlxserver.engine.prompt_speed import PromptSpeed, prompt_speed
from mlxserver.engine.reader import Arrived
from mlxserver.engine.runner import Runner
from mlxserver.engine.scheduler import Scheduler
from mlxserver.engine.slot_actions import SlotActions
from mlxserver.engine.state_space import state_space
from mlxserver.engine.tier import DiskTier
from mlxserver.engine.write_behind import WriteBehind
from mlxserver.kv.disk.entry import DiskError
from mlxserver.kv.memory import MIB, MemoryBudget
from mlxserver.kv.slot_states import SlotStates
from mlxserver.kv.trie import PrefixTrie
from mlxserver.models.caches import cache_maker
from mlxserver.models.errors import ModelError
from mlxserver.models.hidden_states import hidden_states
from mlxserver.models.model import Model
from mlxserver.models.rotary import Rotation, find_rotations
from mlxserver.sampling.sampler import Sampler

log = logging.getLogger("mlxserver.srv")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a step goes through; each has its share of the state, so all are replaced together."""

    scheduler: Scheduler
    runner: Runner
    actions: SlotActions
    writes: WriteBehind | None


class Assembly:
    """``post`` gets what happens elsewhere. Raises ModelError where the model cannot be served as the
    options ask."""

    def __init__(self, model: Model, config: EngineConfig, post: Callable[[Arrived | Wake], None]) -> None:
        self._model = model
        self._config = config
        self._make_cache = cache_maker(model.module, config.swa_full)
        self._types = cache_types(model.module, self._make_cache, config)
        self._space = state_space(model, config)
        self.budget = MemoryBudget(config.memory_limit)
        self._measure()
        self.adapters = AdapterActions(model)
        self.blocks = BlockWatch(self._space, lambda: post(Wake())) if config.kv_events else None
        self._tier = self._disk_tier(post)

    def build(self) -> Parts:
        """Empty slots, an empty trie."""
        model, config, tokenizer = self._model, self._config, self._model.tokenizer
        states = self._states()
        _check_shift(config, states)
        trie = _trie(config, self.blocks)
        self.budget.attach(trie)
        tier, writes = self._tier, None
        if tier is not None:
            writes = WriteBehind(tier.store, states, tier.queue_limit)
        scheduler = Scheduler(
            config,
            states,
            tokenizer.eog_ids,
            trie=trie,
            adds_bos=tokenizer.add_bos,
            tier=tier.of(states, trie) if tier and trie else None,
            on_release=writes.note if writes else lambda slot: None,
            shares_passes=self._shares_passes,
        )
        if not model.is_encoder:
            scheduler.pace.pass_tokens = self._prompt_speed.pass_tokens
            scheduler.pace.seconds_per_token = self._prompt_speed.seconds_per_token
        # a padded head is wider than the vocabulary
        width = tokenizer.n_vocab if model.is_encoder else self._logits().shape[-1]
        sampler = Sampler(width, tokenizer.eog_ids, tokenizer)
        embedder = Embedder(model, config.pooling) if config.embedding else None
        mover = Mover(states, trie, writes)
        compiled = CompiledSteps(model.module, states) if self._has_graphs else None
        forward = ForwardPass(model.module, states, self.adapters.loaded, compiled, self._shares_passes)
        runner = Runner(forward, states, mover, sampler, self._alone, embedder)
        actions = SlotActions(model, config, self._space, states, mover, scheduler.reuse)
        return Parts(scheduler, runner, actions, writes)

    def rebuild(self) -> Parts:
        """As ``build``; raises whatever the model raises where it cannot evaluate a token any more."""
        self.adapters.loaded.use(())
        mx.eval(self._hidden() if self._model.is_encoder else self._logits())
        if self.blocks:
            self.blocks.lose()
        return self.build()

    def close(self, seconds: float) -> None:
        """Let go of the disk; what waits to be written may take so long."""
        if self._tier is not None:
            self._tier.close(seconds)

    def _disk_tier(self, post: Callable[[Arrived], None]) -> DiskTier | None:
        if not self._config.cache_disk:
            return None
        if self._model.is_encoder:
            log.warning("--cache-disk has no effect: an encoder keeps no state")
            return None
        try:
            return DiskTier(self._config, self._space, post, self.blocks.on_disk if self.blocks else None)
        except DiskError as error:
            raise ModelError(f"--cache-disk: {error}") from error

    def _states(self) -> SlotStates:
        n_slots, types = self._config.n_slots, self._types
        return SlotStates(self._make_cache, n_slots, *types, self._find_rotations, self.budget)

    def _few_states(self, n_slots: int) -> SlotStates:
        """To measure with. Of all slots those taken first have the last rows, with room for the others."""
        return SlotStates(self._make_cache, n_slots, *self._types)

    def _measure(self) -> None:
        """What the model takes. Raises ModelError where the least that it needs does not fit."""
        limit, model = self.budget.limit, self._model
        if limit is None:
            return
        width = 0 if model.is_encoder else self._logits().shape[-1]
        self.budget.limit = None
        self.budget.costs = memory_costs(model, self._few_states(1), width)
        needed = mx.get_active_memory() + self.budget.costs.least()
        if needed <= limit:
            self.budget.limit = limit
            return
        text = f"the model needs {needed // MIB + 1} MiB for a short prompt"
        if self._config.memory_limit_is_given:
            raise ModelError(f"{text}, --memory-limit is {limit // MIB} MiB")
        log.warning("%s, the machine can spare %d MiB: memory is not watched", text, limit // MIB)

    def _find_rotations(self) -> list[Rotation | None]:
        self.adapters.loaded.use(())  # the last step's rows are not those of what is evaluated here
        return find_rotations(self._model.module, self._model.info.n_ctx_train)

    def _logits(self) -> mx.array:
        logits: mx.array = self._model.module(mx.array([[0]]))
        return logits

    def _hidden(self) -> mx.array:
        return hidden_states(self._model)(mx.array([[0]]), mx.array([1]))

    @cached_property
    def _prompt_speed(self) -> PromptSpeed:
        self.adapters.loaded.use(())
        return prompt_speed(self._model.module, self._few_states(1))

    @cached_property
    def _alone(self) -> bool:
        """Whether slots have to decode one by one."""
        config, model = self._config, self._model
        if names := self._states().alone:
            log.warning("slots decode one by one: %s cannot be batched", ", ".join(names))
            return True
        if model.is_encoder:
            return False
        if config.n_slots > 1 and config.warmup and not rows_agree(model.module, self._make_cache):
            log.warning("slots decode one by one: %s gives other results in a batch", model.info.architecture)
            return True
        return False

    @cached_property
    def _shares_passes(self) -> bool:
        """Whether tokens of several slots, chunks of prompts among them, may share a pass."""
        if self._model.is_encoder or self._alone or self._config.n_slots == 1 or not self._config.warmup:
            return False
        return ragged_agrees(self._model.module, self._make_cache)

    @cached_property
    def _has_graphs(self) -> bool:
        """Whether decode steps may be compiled."""
        if self._model.is_encoder or not self._config.warmup:
            return False
        most_rows = 1 if self._alone else min(self._config.n_slots, 2)
        return graphs_agree(self._model.module, self._few_states(most_rows), most_rows)


def _check_shift(config: EngineConfig, states: SlotStates) -> None:
    """Raises ModelError where an option needs what the model's state cannot do."""
    wanted = {"--cache-reuse": config.cache_reuse > 0, "--context-shift": config.context_shift}
    for option, is_wanted in wanted.items():
        if is_wanted and states.cannot_shift:
            raise ModelError(f"{option} cannot be used with this model: {states.cannot_shift}")


def _trie(config: EngineConfig, observer: BlockWatch | None) -> PrefixTrie | None:
    if config.cache_ram == 0:
        return None
    limit = config.cache_ram * 2**20 if config.cache_ram > 0 else None
    return PrefixTrie(limit, config.ctx_checkpoints * config.n_slots, observer)
