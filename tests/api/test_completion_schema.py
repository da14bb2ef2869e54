"""Fields of a completion request: coercions, limits, aliases and the texts of errors."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mlxserver.api.completion_defaults import default_request
from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.completion_runner import read_body
from mlxserver.api.errors import ApiError
from mlxserver.api.generation_settings import default_settings
from tests.api.fake_engine import BOS, EOS, TAG, FakeEngine, fake_state


def read(*argv: str, **body: Any) -> CompletionRequest:
    return read_body({"prompt": "x"} | body, fake_state(FakeEngine(n_slots=2), *argv))[0]


def error(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(**body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"n_predict": 2.9}, "n_predict", 2),
        ({"n_predict": True}, "n_predict", 1),
        ({"n_predict": None}, "n_predict", -1),
        ({"max_tokens": 3}, "n_predict", 3),
        ({"max_tokens": 3, "max_completion_tokens": 2}, "n_predict", 2),
        ({"max_tokens": 3, "max_completion_tokens": 2, "n_predict": 1}, "n_predict", 1),
        ({"max_tokens": 3, "n_predict": None}, "n_predict", 3),
        ({"n": 2}, "n_cmpl", 2),
        ({"id_slot": "1"}, "id_slot", -1),
        ({"id_slot": 1.5}, "id_slot", 1),
        ({"response_fields": "content"}, "response_fields", ()),
        ({"response_fields": [1]}, "response_fields", ()),
        ({"stop": "a"}, "stop", ("a",)),
        ({"stop": ""}, "stop", ("",)),
        ({"stop": ["a", None, [], "b"]}, "stop", ("a", "b")),
        ({"stop": []}, "stop", ()),
        ({"stop": 5}, "stop", ()),
        (
            {"lora": [{"id": 3, "scale": 0.5}, {"id": 1}, {"scale": 2}]},
            "lora",
            ((-1, 2.0), (1, 0.0), (3, 0.5)),
        ),
        ({"stream_options": {"include_usage": True}}, "include_usage", True),
        ({"stream_options": "x"}, "include_usage", False),
        ({"grammar": ""}, "grammar", ""),
        ({"grammar": 5}, "grammar", ""),
        ({"json_schema": {"type": "object"}, "grammar": None}, "grammar", ""),
        ({"preserved_tokens": ["<tag>", "two"]}, "preserved_tokens", frozenset({TAG})),
        ({"chat_format": 2}, "chat_format", "peg-native"),
        ({"reasoning_format": "none"}, "reasoning_format", "none"),
        ({"t_max_predict_ms": 5.7}, "t_max_predict_ms", 5),
        ({"reasoning_budget_message": "x"}, "reasoning_budget_message", "x"),
        ({"reasoning_budget_message": 5}, "reasoning_budget_message", ""),
    ],
)
def test_request_fields(body: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(read(**body), field) == value


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"top_k": True}, "top_k", 1),
        ({"top_k": -5}, "top_k", 0),
        ({"top_p": 3}, "top_p", 1.0),
        ({"temperature": -1}, "temperature", 0.0),
        ({"temperature": False}, "temperature", 0.0),
        ({"temperature": 0.8}, "temperature", 0.800000011920929),
        ({"temperature": 1e300}, "temperature", math.inf),
        ({"top_n_sigma": 1e300}, "top_n_sigma", 3.4028234663852886e38),
        ({"frequency_penalty": -1e300}, "frequency_penalty", -3.4028234663852886e38),
        ({"seed": -1}, "seed", 2**32 - 1),
        ({"seed": 2**32 + 5}, "seed", 5),
        ({"n_probs": -3}, "n_probs", -3),
        ({"logprobs": True}, "n_probs", 1),
        ({"logprobs": 4, "n_probs": 2}, "n_probs", 2),
        ({"mirostat": 7}, "mirostat", 2),
        ({"dry_base": 0.5}, "dry_base", 1.75),
        ({"adaptive_target": 2}, "adaptive_target", 1.0),
        ({"samplers": ["Top-K", "nope", "TEMP"]}, "samplers", ("top_k", "temperature")),
        ({"samplers": "kt?"}, "samplers", ("top_k", "temperature")),
        ({"samplers": []}, "samplers", ()),
        ({"samplers": 5}, "samplers", None),
        (
            {"logit_bias": [[65, 1.5], [66, False], [67, True], [400, 1], ["ab", -1], [1]]},
            "logit_bias",
            ((65, 1.5), (66, -math.inf), (97, -1.0), (98, -1.0)),
        ),
        ({"logit_bias": {"65": 2, "ab": 1, "x": "y"}}, "logit_bias", ((65, 2.0), (97, 1.0), (98, 1.0))),
        ({"logit_bias": 5}, "logit_bias", ()),
        ({"ignore_eos": True, "logit_bias": [[65, 1]]}, "logit_bias", ((65, 1.0), (EOS, -math.inf))),
    ],
)
def test_sampling_fields(body: dict[str, Any], field: str, value: Any) -> None:
    default = getattr(
        default_request(fake_state(FakeEngine()).options, fake_state(FakeEngine()).model).sampling, field
    )
    assert getattr(read(**body).sampling, field) == (default if value is None else value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"n_predict": -2}, "Field 'n_predict': Value must be between -1 <= value <= 2147483647, but got -2"),
        (
            {"max_tokens": -2},
            "Field 'max_tokens': Value must be between -1 <= value <= 2147483647, but got -2",
        ),
        ({"n_cmpl": 3}, "Field 'n_cmpl': Value must be between 1 <= value <= 2, but got 3"),
        ({"n": 0}, "Field 'n': Value must be between 1 <= value <= 2, but got 0"),
        (
            {"adaptive_decay": 2},
            "Field 'adaptive_decay': Value must be between 0.000000 <= value <= 0.990000, but got 2.000000",
        ),
        (
            {"n_predict": "4"},
            "Field 'n_predict': [json.exception.type_error.302] type must be number, but is string",
        ),
        ({"n_predict": 1e20}, None),
        (
            {"stream": 1},
            "Field 'stream': [json.exception.type_error.302] type must be boolean, but is number",
        ),
        ({"t_max_predict_ms": True}, None),
        ({"t_max_predict_ms": 1e20}, None),
        ({"stop": [1]}, None),
        ({"samplers": [5]}, None),
        ({"preserved_tokens": [5]}, None),
        (
            {"lora": {}},
            "Field 'lora': Error: 'lora' must be an array of objects with 'id' and 'scale' fields",
        ),
        (
            {"dry_sequence_breakers": ["a", 1]},
            "Field 'dry_sequence_breakers': Error: "
            "dry_sequence_breakers must be a non-empty array of strings",
        ),
        ({"reasoning_format": "x"}, "Field 'reasoning_format': Unknown reasoning format: x"),
        (
            {"grammar_lazy": True, "grammar_triggers": [], "grammar": "x"},
            "Field 'grammar_triggers': Error: no triggers set for lazy grammar!",
        ),
        (
            {"grammar_triggers": [{"type": 1, "value": "<tag>"}]},
            "Field 'grammar_triggers': Grammar trigger word should be marked as preserved token: <tag>",
        ),
        (
            {"repeat_penalty": 0},
            "Failed to initialize samplers: penalty_repeat must be finite and greater than 0",
        ),
        ({"chat_parser": ""}, None),
        ({"grammar_triggers": False}, None),
        ({"prompt": []}, '"prompt" must not be empty'),
        ({"prompt": [299, 300]}, "Prompt contains invalid tokens"),
        (
            {"prompt": {"prompt_string": "x", "multimodal_data": []}},
            "Multimodal data provided, but model does not support multimodal requests.",
        ),
    ],
)
def test_bad_fields(body: dict[str, Any], message: str | None) -> None:
    caught = error(**body)
    assert caught.status == 400
    assert message is None or caught.message == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([1], "[json.exception.type_error.304] cannot use at() with array"),
        (None, "[json.exception.type_error.304] cannot use at() with null"),
        ({}, "[json.exception.out_of_range.403] key 'prompt' not found"),
    ],
)
def test_bodies_without_a_prompt(body: Any, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_body(body, fake_state(FakeEngine()))
    assert (caught.value.status, caught.value.message) == (400, message)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", [(BOS, 97, 98)]),
        ("", [(BOS,)]),
        ([1, 2], [(1, 2)]),
        ([1, "a", 2], [(1, 97, 2)]),
        (["a", 1, "b"], [(BOS, 97, 1, 98)]),
        (["a", "b"], [(BOS, 97), (BOS, 98)]),
        ([[1, 2], "a", {"prompt_string": "b"}, [1, "c"]], [(1, 2), (BOS, 97), (BOS, 98), (1, 99)]),
        ({"prompt_string": [1, "a"]}, [(1, 97)]),
        ([[]], [()]),
        ("<tag>", [(BOS, TAG)]),
    ],
)
def test_prompt_forms(prompt: Any, tokens: list[tuple[int, ...]]) -> None:
    assert read_body({"prompt": prompt}, fake_state(FakeEngine()))[1] == tokens


@pytest.mark.parametrize(
    "prompt", [None, 5, True, {"a": 1}, [True], [1.5], [1, 2.5], [1, None], [["a", "b"]]]
)
def test_other_prompts_are_refused(prompt: Any) -> None:
    assert error(prompt=prompt).message.startswith('"prompt" elements must be a string')


def test_defaults_come_from_the_command_line_then_from_the_model() -> None:
    argv = ["--temp", "0.25", "-n", "9", "-r", "###", "--ignore-eos", "-l", "65+1.5", "--keep", "3"]
    request = read(*argv)
    assert (request.sampling.temperature, request.n_predict, request.n_keep) == (0.25, 9, 3)
    assert (request.stop, request.ignore_eos) == (("###",), True)
    assert request.sampling.logit_bias == ((65, 1.5), (EOS, -math.inf))
    assert read(*argv, stop=[], logit_bias=[]).stop == ("###",)
    assert read(*argv, logit_bias=[]).sampling.logit_bias == ()

    state = fake_state(FakeEngine(), "--temp", "0.25", sampling_defaults={"temperature": 0.5, "top_k": 7})
    sampling = default_request(state.options, state.model).sampling
    assert (sampling.temperature, sampling.top_k) == (0.25, 7)


def test_props_settings_are_short_and_fixed_beside_sampling() -> None:
    state = fake_state(FakeEngine(), "-n", "9", "--temp", "0.5")
    settings = default_settings(state.options, state.model)
    assert (settings["n_predict"], settings["temperature"], settings["reasoning_format"]) == (-1, 0.5, "none")
    assert not {"stop", "grammar", "logit_bias", "dry_sequence_breakers"} & settings.keys()
