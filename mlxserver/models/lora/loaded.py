"""The adapters that are put into a model: beside its layers, and chosen for each row of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlxserver.models.lora.adapter import Adapter
from mlxserver.models.lora.layers import Site, adapt, is_adapted, restore
from mlxserver.models.lora.rows import RowAdapters, Rows
from mlxserver.models.lora.targets import find_targets
from mlxserver.models.lora.watch import check_calls


class LoadedAdapters:
    """Owned by the thread that runs the model. A module has one of these at a time."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._targets = find_targets(module)
        self._rows = Rows()
        self._sites: dict[str, Site] = {}
        self._checked: set[str] = set()
        self._adapters: dict[str, Adapter] = {}

    def add(self, adapter: Adapter) -> None:
        """``adapter`` was loaded for this model; one that is there already is left alone.

        Raises AdapterError, changing nothing, for a layer that the model does not simply call. All rows are
        the base model's until the next ``use``.
        """
        if adapter.digest in self._adapters:
            return
        self._check(adapter)
        for path, part in adapter.parts.items():
            self._site(path).parts[adapter.digest] = part
        self._adapters[adapter.digest] = adapter

    def remove(self, digest: str) -> None:
        """Raises KeyError where it is not there. All rows are the base model's until the next ``use``."""
        adapter = self._adapters.pop(digest)
        self._rows.forget(digest)
        for path in adapter.parts:
            site = self._sites[path]
            del site.parts[digest]
            if not site.parts:
                restore(self._targets[path].layer)
                del self._sites[path]
        used = {id(self._targets[path].block) for path in self._sites}
        for path in adapter.parts:
            block = self._targets[path].block
            if id(block) not in used and is_adapted(block):
                restore(block)

    def use(self, rows: Sequence[RowAdapters]) -> None:
        """What each row of the next forward pass uses: (digest, scale) pairs of adapters that were added.

        It holds until the next ``use``. A row of () is the base model's, and so is every row with (). Where
        all rows are alike a batch of any size may follow, else one of ``len(rows)``.
        """
        for row in rows:
            for digest, _ in row:
                if digest not in self._adapters:
                    raise KeyError(digest)
        self._rows.choose(rows)

    def _check(self, adapter: Adapter) -> None:
        self._rows.choose(())
        new = {path: self._targets[path] for path in adapter.parts if path not in self._checked}
        if new:
            check_calls(self._module, new)
            self._checked.update(new)

    def _site(self, path: str) -> Site:
        if path not in self._sites:
            target = self._targets[path]
            self._sites[path] = Site(path, self._rows)
            adapt(target.layer, self._sites[path])
            if target.n_experts and not is_adapted(target.block):
                adapt(target.block, Site("", self._rows))
        return self._sites[path]
