"""How mlx-lm makes the empty caches of one sequence for a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def cache_maker(module: Any, swa_full: bool = False) -> Callable[[], list[Any]]:
    """One cache a layer: the model's own choice, plain attention where it makes none.

    With ``swa_full`` sliding windows keep all their tokens; the mask alone hides those outside.
    """
    from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

    def make() -> list[Any]:
        caches = make_prompt_cache(module)
        return [KVCache() if swa_full and type(cache) is RotatingKVCache else cache for cache in caches]

    return make
