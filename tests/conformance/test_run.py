"""How the cases are shared out between servers."""

from tests.conformance.run import shards


def test_cases_of_one_profile_stay_together_and_in_order() -> None:
    profiles = {f"a.{i}": "one" for i in range(5)} | {"b.1": "two", "b.2": "two", "c": "three"}
    assert shards(profiles, 2) == [[f"a.{i}" for i in range(5)], ["b.1", "b.2", "c"]]
    assert shards(profiles, 1) == [[*(f"a.{i}" for i in range(5)), "b.1", "b.2", "c"]]
    assert shards({"c": "three"}, 4) == [["c"]]
