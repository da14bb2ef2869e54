"""The KV types that the options ask for, held against what the model's state is made of."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mlxserver.engine.config import EngineConfig
from mlxserver.kv.kv_type import GROUP, KV_TYPES, KVType
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.errors import ModelError

log = logging.getLogger("mlxserver.srv")

PLAIN = KV_TYPES["f32"]


def cache_types(
    module: Any, make_cache: Callable[[], list[Any]], config: EngineConfig
) -> tuple[KVType, KVType]:
    """Of keys and of values. The log tells how quantised ones are held.

    Raises ModelError, in llama-server's words, where this model cannot hold its state in them.
    """
    key_type, value_type = KV_TYPES[config.cache_type_k], KV_TYPES[config.cache_type_v]
    if value_type.bits and not config.flash_attn:
        raise ModelError("quantized V cache requires flash_attn to be enabled")
    quantised = {kind.name: kind for kind in (key_type, value_type) if kind.bits}
    if not quantised:
        return key_type, value_type
    states = _first_token(module, make_cache)
    for dims in states.widths:
        _check("K", key_type, dims[0])
        _check("V", value_type, dims[1])
    for kind in quantised.values():
        log.info("%s", kind)
    if states.uncut:
        log.warning("%d layers stay unquantised: %s", len(states.uncut), ", ".join(sorted({*states.uncut})))
    return key_type, value_type


def _first_token(module: Any, make_cache: Callable[[], list[Any]]) -> SlotStates:
    """The state of one token, unquantised and not evaluated: its shapes are known."""
    states = SlotStates(make_cache, 1, PLAIN, PLAIN)
    module(mx.array([[0]]), cache=states.prompt_chunk(0, 1))
    return states


def _check(letter: str, kind: KVType, head_dim: int) -> None:
    if not kind.fits(head_dim):
        raise ModelError(
            f"{letter} cache type {kind.name} with block size {GROUP} "
            f"does not divide n_embd_head_{letter.lower()}={head_dim}"
        )
