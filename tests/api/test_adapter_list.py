"""Which adapters a prompt gets: the request's, the server's, and those that begin at an invocation."""

from __future__ import annotations

import pytest

from mlxserver.api.adapter_list import AdapterList, ChosenAdapters, last_occurrence
from mlxserver.engine.mailbox import AdapterInfo

A, B = AdapterInfo("a.gguf", "bb"), AdapterInfo("b.gguf", "aa")
INVOKED = AdapterInfo("c.gguf", "cc", invocation=(7, 8))
OTHER_INVOKED = AdapterInfo("d.gguf", "dd", invocation=(9,))
PROMPT = (1, 7, 8, 2, 7, 8, 3)


def listed(*scales: float) -> AdapterList:
    return AdapterList([A, B, INVOKED, OTHER_INVOKED][: len(scales)], scales)


def test_without_a_wish_the_default_scales_hold() -> None:
    assert listed(1.0, 0.0).choose({}, PROMPT) == ChosenAdapters((("bb", 1.0),))
    assert listed(0.0, 0.0).choose({}, PROMPT) == ChosenAdapters()


def test_adapters_that_a_request_does_not_name_have_scale_0() -> None:
    adapters = listed(1.0, 1.0)
    assert adapters.choose({1: 0.5}, PROMPT) == ChosenAdapters((("aa", 0.5),))
    assert adapters.choose({0: 0.0}, PROMPT) == ChosenAdapters()
    assert adapters.choose({99: 1.0, -1: 1.0}, PROMPT) == ChosenAdapters()


def test_the_set_does_not_depend_on_the_order_of_the_ids() -> None:
    assert listed(1.0, 0.5).choose({}, PROMPT).throughout == (("aa", 0.5), ("bb", 1.0))


def test_an_invocation_begins_one_token_before_its_last_occurrence() -> None:
    adapters = listed(0.0, 0.0, 1.0)
    assert adapters.choose({}, PROMPT) == ChosenAdapters((), (("cc", 1.0),), 3)
    assert adapters.choose({}, (7, 8, 3)) == ChosenAdapters((), (("cc", 1.0),), 0)


def test_without_its_invocation_the_adapter_is_not_used() -> None:
    assert listed(0.0, 0.0, 1.0).choose({}, (1, 2, 7)) == ChosenAdapters()


def test_beside_an_ordinary_adapter_an_invocation_means_nothing() -> None:
    chosen = listed(1.0, 0.0, 1.0).choose({}, PROMPT)
    assert chosen == ChosenAdapters((("bb", 1.0), ("cc", 1.0)))


@pytest.mark.parametrize("scales", [(0.0, 0.0, 1.0, 1.0), (0.0, 0.0, -1.0, 0.0)])
def test_only_one_adapter_can_be_invoked(scales: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="Cannot run multiple aLoRAs in a single request"):
        listed(*scales).choose({}, PROMPT)


def test_ids_are_never_given_twice() -> None:
    adapters = listed(1.0, 1.0)
    assert adapters.remove(1) is not None and adapters.remove(1) is None
    assert adapters.add(B, 0.25).id == 2
    assert [each.id for each in adapters] == [0, 2]
    adapters.set_scales({2: 1.0})
    assert [each.scale for each in adapters] == [0.0, 1.0]
    assert adapters.ids() == {"bb": 0, "aa": 2}


def test_embeddings_take_the_servers_adapters_unless_those_are_invoked() -> None:
    assert listed(1.0).throughout() == (("bb", 1.0),)
    assert listed(0.0).throughout() == ()
    with pytest.raises(ValueError, match="aLoRA"):
        listed(0.0, 0.0, 1.0).throughout()


@pytest.mark.parametrize(
    ("wanted", "tokens", "at"),
    [((1,), (), -1), ((1, 2), (1,), -1), ((1, 2), (1, 2), 0), ((1, 1), (1, 1, 1), 1), ((2,), (1, 3), -1)],
)
def test_last_occurrence(wanted: tuple[int, ...], tokens: tuple[int, ...], at: int) -> None:
    assert last_occurrence(wanted, tokens) == at
