"""The forms a prompt can take: text, token ids, a mixture, an object, or several of these."""

from __future__ import annotations

from typing import Any

from mlxserver.api.field_types import integer, text
from mlxserver.api.request_bounds import MAX_PROMPTS, check_count
from mlxserver.models.model import Tokenizer

_WRONG_FORM = (
    '"prompt" elements must be a string, a list of tokens, a JSON object containing a prompt string, '
    "or a list of mixed strings & tokens."
)
_NO_MEDIA = "Multimodal data provided, but model does not support multimodal requests."
_token = integer()


def tokenize_prompts(prompt: Any, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The token ids of every prompt in ``prompt``; an array without an integer at its top holds several.

    Raises ``ValueError`` with the text a client sees.
    """
    if isinstance(prompt, list) and not any(_is_token(item) for item in prompt):
        check_count(prompt, MAX_PROMPTS)
        prompts = [_tokenize_one(item, tokenizer) for item in prompt]
    else:
        prompts = [_tokenize_one(prompt, tokenizer)]
    if not prompts:
        raise ValueError('"prompt" must not be empty')
    return prompts


def check_tokens(tokens: tuple[int, ...], tokenizer: Tokenizer) -> None:
    """Raises ``ValueError`` for an id outside the vocabulary."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < tokenizer.n_vocab):
        raise ValueError("Prompt contains invalid tokens")


def tokenize_mixed(value: Any, tokenizer: Tokenizer, add_special: bool, parse_special: bool) -> list[int]:
    """The ids of a text, or of an array of texts and ids; only a text that comes first gets a BOS."""
    if not isinstance(value, list):
        return tokenizer.encode(text(value), add_special, parse_special)
    tokens: list[int] = []
    for position, item in enumerate(value):
        if isinstance(item, str):
            tokens += tokenizer.encode(item, add_special and position == 0, parse_special)
        else:
            tokens.append(_token(item))
    return tokens


def _tokenize_one(prompt: Any, tokenizer: Tokenizer) -> tuple[int, ...]:
    if isinstance(prompt, list) and all(_is_token(item) for item in prompt):
        return tuple(_token(item) for item in prompt)
    if isinstance(prompt, dict) and "prompt_string" in prompt:
        if "multimodal_data" in prompt:
            raise ValueError(_NO_MEDIA)
        prompt = prompt["prompt_string"]
    elif not isinstance(prompt, str) and not _is_mixed(prompt):
        raise ValueError(_WRONG_FORM)
    return tuple(tokenize_mixed(prompt, tokenizer, add_special=True, parse_special=True))


def _is_mixed(prompt: Any) -> bool:
    if not isinstance(prompt, list):
        return False
    return any(isinstance(item, str) for item in prompt) and any(_is_token(item) for item in prompt)


def _is_token(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)
