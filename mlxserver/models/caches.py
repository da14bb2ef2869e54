"""How mlx-lm makes the empty caches of one sequence for a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def cache_maker(module: Any) -> Callable[[], list[Any]]:
    """One cache a layer: the model's own choice, plain attention where it makes none."""
    from mlx_lm.models.cache import make_prompt_cache

    return lambda: list(make_prompt_cache(module))
