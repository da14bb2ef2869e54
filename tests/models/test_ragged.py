"""A model asks a cache that attends by itself, and is what it was with every other one."""

from __future__ import annotations

import sys

import mlx.core as mx
import pytest

from mlxserver.engine.batch_check import ragged_agrees
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from mlxserver.models.ragged import NAME, fit_for_ragged_passes
from tests.models import tiny

PLAIN = ("llama", "qwen3", "mixtral")
TOKENS = mx.array([[3, 1, 4, 1, 5]])


@pytest.mark.parametrize("kind", tiny.ALL)
def test_the_check_at_load(kind: str) -> None:
    """Latent attention (deepseek_v3) computes scores outside of it; the others are not plain."""
    module = tiny.ALL[kind]()
    assert ragged_agrees(module, cache_maker(module)) == (kind in PLAIN)


@pytest.mark.parametrize("kind", tiny.ALL)
def test_other_caches_get_what_they_got(kind: str) -> None:
    module = tiny.ALL[kind]()
    expected = module(TOKENS), module(TOKENS, cache=cache_maker(module)())
    fit_for_ragged_passes(module)
    assert mx.array_equal(module(TOKENS), expected[0]).item()
    assert mx.array_equal(module(TOKENS, cache=cache_maker(module)()), expected[1]).item()


def test_twice_is_once() -> None:
    module = tiny.llama()
    fit_for_ragged_passes(module)
    attention, trunk = getattr(sys.modules[type(module).__module__], NAME), type(module.model)
    fit_for_ragged_passes(module)
    assert getattr(sys.modules[type(module).__module__], NAME) is attention
    assert type(module.model) is trunk and trunk.__name__ == trunk.__mro__[2].__name__


def test_a_model_that_leaves_attention_to_nobody_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.llama()
    owner = sys.modules[type(module).__module__]
    plain = getattr(owner, NAME)
    plain = getattr(plain, "__wrapped__", plain)

    def own(*args: object, **fields: object) -> object:
        return plain(*args, **{**fields, "mask": None})

    own.__wrapped__ = plain  # type: ignore[attr-defined]
    monkeypatch.setattr(owner, NAME, own)
    assert not ragged_agrees(module, cache_maker(module))


def test_a_chunk_alone_makes_all_logits() -> None:
    module = tiny.llama()
    fit_for_ragged_passes(module)
    states = SlotStates(cache_maker(module), 2, KV_TYPES["f32"], KV_TYPES["f32"])
    assert module(TOKENS.T, cache=states.ragged([], [(0, 5)])).shape == (5, 1, tiny.VOCAB)
