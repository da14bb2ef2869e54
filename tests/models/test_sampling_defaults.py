from __future__ import annotations

from dataclasses import fields

from mlxserver.models.sampling_defaults import from_generation_config, from_metadata
from mlxserver.sampling.params import SamplingParams


def test_every_key_of_a_gguf_file() -> None:
    names = {
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.1,
        "xtc_probability": 0.2,
        "xtc_threshold": 0.3,
        "temp": 0.800000011920929,
        "penalty_last_n": 32,
        "penalty_repeat": 1.1,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
        "sequence": "top_k;temp",
    }
    found = from_metadata({f"general.sampling.{name}": value for name, value in names.items()})
    assert found == {
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.1,
        "xtc_probability": 0.2,
        "xtc_threshold": 0.3,
        "temperature": 0.8,
        "repeat_last_n": 32,
        "repeat_penalty": 1.1,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
        "samplers": ("top_k", "temp"),
    }
    assert set(found) <= {field.name for field in fields(SamplingParams)}


def test_values_of_the_wrong_type_are_left_out() -> None:
    values = {"top_k": "5", "temp": True, "sequence": "", "unknown": 1}
    assert from_metadata({f"general.sampling.{name}": value for name, value in values.items()}) == {}


def test_a_generation_config() -> None:
    config = {
        "temperature": 0.7,
        "repetition_penalty": 1.05,
        "top_k": 20,
        "do_sample": True,
        "eos_token_id": [1],
    }
    assert from_generation_config(config) == {"temperature": 0.7, "repeat_penalty": 1.05, "top_k": 20}
