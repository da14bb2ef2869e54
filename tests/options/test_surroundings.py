"""Environment variables beyond the options: refused, hinted at, or read."""

from __future__ import annotations

import pytest

from mlxserver.options import Exit, parse_command_line
from mlxserver.options.surroundings import Variable, variables


@pytest.mark.parametrize("variable", variables(), ids=lambda variable: variable.name)
def test_a_variable_is_taken_as_its_state_says(variable: Variable) -> None:
    value = variable.values[0] if variable.values else "1"
    if variable.state in ("deferred", "refused"):
        with pytest.raises(Exit) as refused:
            parse_command_line([], {variable.name: value})
        assert refused.value.code == 1
        assert f"not yet implemented: {variable.name}" in refused.value.stderr
        return
    texts = [notice.text for notice in parse_command_line([], {variable.name: value}).notices]
    assert any(text.startswith(f"{variable.name} has no effect") for text in texts) is (
        variable.state == "hint"
    )


def test_another_value_is_not_meant() -> None:
    parse_command_line([], {"AIP_MODE": "TRAINING"})
