"""Whatever JSON comes, a dialect answers it or refuses it in its own words; nothing breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserver.api import anthropic_request, responses_request
from mlxserver.api.errors import ApiError
from mlxserver.chat.errors import ChatError
from mlxserver.chat.request import ChatSettings, parse_chat
from mlxserver.chat.template import Vocabulary, make_template

KEYS = (
    "messages input role content type text system thinking source data url tool_use_id id name input_schema "
    "tools tool_choice stop_sequences max_tokens budget_tokens format schema output_config reasoning effort "
    "summary call_id arguments output instructions refusal image_url previous_response_id is_error"
).split()
WORDS = (
    "user assistant system text image thinking tool_use tool_result base64 url message function_call "
    "reasoning function_call_output input_text output_text input_image input_file refusal function auto any "
    "tool enabled json_schema json_object"
).split()

plain = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(WORDS)
anything = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)


def likely(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with a type and some of the known keys; ``values`` mostly as given."""
    optional = {key: values.get(key, anything) for key in KEYS if key != "type"}
    some = st.fixed_dictionaries({"type": st.sampled_from(WORDS)}, optional=optional)
    return st.builds(lambda fields, keep: {k: v for k, v in fields.items() if k in keep}, some, _kept)


_kept = st.sets(st.sampled_from(KEYS), min_size=len(KEYS) // 3).map(lambda keys: keys | {"type"})
block = likely(text=st.just("x"), content=st.lists(likely(), max_size=2) | anything)
turn = likely(role=st.sampled_from(WORDS[:3]), content=st.lists(block, max_size=3) | anything)
turns = st.lists(turn | anything, max_size=3)
bodies = st.builds(lambda rest, m: {**rest, "messages": m, "input": m}, likely(), turns | anything) | anything
TEMPLATE = make_template("", True, "", "", Vocabulary())


@pytest.mark.parametrize("chat_body", [anthropic_request.chat_body, responses_request.chat_body])
@given(body=bodies)
def test_any_json_is_read_or_refused(chat_body: Callable[[Any], dict[str, Any]], body: Any) -> None:
    try:
        parse_chat(chat_body(body), TEMPLATE, ChatSettings())
    except (ApiError, ChatError) as error:
        assert str(error)
