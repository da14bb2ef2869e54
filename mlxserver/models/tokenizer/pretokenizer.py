"""How a byte-pair vocabulary wants a text cut into words: ``tokenizer.ggml.pre`` to regular expressions.

The expressions are applied one after the other, each to the pieces that the one before left; both matches
and the text between them are words. They describe what llama.cpp computes, which for some kinds is not what
the model's own tokenizer.json says: letter cases are told apart in ASCII only, digits of ``\\d`` are ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from mlxserver.models.tokenizer import ranges

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"
_BREAKS = r"\s*[\r\n]+"
_SPACES = r"\s+(?!\S)|\s+"

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SIGNS}|{_SPACES}"
_NEWLINES = r"[^\n]+|\n+"
_THREE_DIGITS = "[0-9][0-9][0-9]"
_DIGIT_GROUPS = r"\P{N}*(?:\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))|\z)"
"""Groups of three counted from the right; text before a number stays with its first group."""
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BREAKS}|{_SPACES}"
)


def _words(number: str, signs: str = rf"{_SIGNS}[\r\n]*", spaces: str = _SPACES) -> str:
    return rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|{number}|{signs}|{_BREAKS}|{spaces}"


def _cased(letters: str, number: str, ending: str) -> str:
    """Words that end where ASCII capitals follow small letters."""
    not_small, not_capital = rf"[{letters}&&[^a-z]]", rf"[{letters}&&[^A-Z]]"
    return (
        rf"{_LEAD}{not_small}*{not_capital}+{ending}|{_LEAD}{not_small}+{not_capital}*{ending}"
        rf"|{number}|{_SIGNS}[\r\n/]*|{_BREAKS}|{_SPACES}"
    )


def _marked(number: str) -> str:
    return rf"{_LEAD}[\p{{L}}\p{{M}}]+{_CONTRACTION}?|{number}|{_SIGNS}[\r\n/]*|{_BREAKS}|{_SPACES}"


_LLAMA3 = _words(r"\p{N}{1,3}")
_QWEN2 = _words(r"\p{N}")
_QWEN35 = (
    rf"{_CONTRACTION}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    rf"|{_BREAKS}|{_SPACES}"
)
_CASCADE = "|".join([rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")] + [r"\s"])
_BAILING = (
    rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_LEAD}\p{{L}}+|\p{{N}}|{_SIGNS}[\r\n]*|\s*[\r\n]|{_SPACES}"
)
_EXAONE_MOE = (
    rf"{_CONTRACTION}|{_LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|{_SIGNS}[\r\n/]?"
    rf"|\s*[\r\n]|{_SPACES}"
)
_KIMI = (
    rf"[{ranges.HAN}]+|{_LEAD}[\p{{L}}&&[^{ranges.HAN}]]+{_CONTRACTION}?|\p{{N}}{{1,3}}"
    rf"|{_SIGNS}[\r\n]*|{_BREAKS}|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    splits: tuple[str, ...]
    ignore_merges: bool = False
    """A word that is a token stays whole, whatever the merges say."""
    add_bos: bool = False
    clean_spaces: bool = False
    byte_level: bool = True
    """Else raw UTF-8, in which spaces are written as U+2581 and unknown bytes as ``<0x0A>``."""
    bos_id: int = 11
    whole_newlines: bool = False
    """A run of newlines that is a token stays whole."""

    def build(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(_as_of_unicode_15(split)), "isolated") for split in self.splits
        ]
        if self.byte_level:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


def _as_of_unicode_15(expression: str) -> str:
    # The regex engine knows Unicode 16; llama.cpp's tables are those of 15.1.
    return re.sub(r"\\p\{(\w)\}", rf"[\\p{{\1}}&&[^{ranges.NEW_IN_UNICODE_16}]]", expression)


def _kinds() -> Iterator[tuple[str, PreTokenizer]]:
    """(space separated names, how)"""
    clean = PreTokenizer((_GPT2,), clean_spaces=True)
    yield (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert"
        " jina-v1-en jina-v2-code roberta-bpe mpt olmo jais exaone4",
        clean,
    )
    yield "trillion granite-docling", PreTokenizer((_GPT2,))
    digits = (r"\p{N}", _GPT2)
    yield "starcoder refact codeshell exaone minerva-7b mellum2", PreTokenizer(digits, clean_spaces=True)
    yield "command-r smollm", PreTokenizer(digits)
    yield (
        "default",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", _THREE_DIGITS), clean_spaces=True),
    )
    yield "falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, _THREE_DIGITS), clean_spaces=True)
    yield (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True, clean_spaces=True),
    )
    yield "dbrx smaug-bpe", PreTokenizer((_LLAMA3,), clean_spaces=True)
    yield "glm4 chatglm-bpe", PreTokenizer((_LLAMA3,), clean_spaces=True, bos_id=-1)
    yield "jais-2", PreTokenizer((_words(r"\p{N}{1,3}", spaces=_CASCADE),), clean_spaces=True)
    yield "stablelm2 megrez", PreTokenizer((_QWEN2,), clean_spaces=True)
    yield "qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2", PreTokenizer((_QWEN2,))
    yield "qwen35", PreTokenizer((_QWEN35,))
    yield "laguna", PreTokenizer((_NEWLINES, _QWEN2))
    yield (
        "minicpm5",
        PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True, clean_spaces=True),
    )
    yield "seed-coder", PreTokenizer((_words(r"\p{N}", signs=r" ?[^\s\p{L}\p{N}\r\n]+"),))
    yield "bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))
    yield "exaone-moe", PreTokenizer((_EXAONE_MOE,), clean_spaces=True)
    yield (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{ranges.CASED_LETTERS}]+",
                rf"\s?[{ranges.ASCII_AND_WIDE_SIGNS}]+",
                r"\s+\z",
                rf"[{ranges.EAST_ASIAN}]+",
                r"\p{N}+",
            )
        ),
    )
    yield (
        "deepseek-coder",
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", rf"[{ranges.EAST_ASIAN}]+", r"\p{N}")),
    )
    yield (
        "deepseek-v3 hunyuan-dense joyai-llm",
        PreTokenizer((r"\p{N}{1,3}", rf"[{ranges.HAN_AND_KANA}]+", _DEEPSEEK3)),
    )
    yield "afmoe", PreTokenizer((_DIGIT_GROUPS, rf"[{ranges.ASIAN_SCRIPTS}]+", _DEEPSEEK3))
    yield (
        "youtu",
        PreTokenizer(
            (
                rf"[{ranges.HANGUL}]+|[{ranges.WIDE_SIGNS}]+|[{ranges.BOPOMOFO}]+|[{ranges.HAN_AND_KANA}]+",
                _marked(r"\p{N}"),
            ),
            ignore_merges=True,
        ),
    )
    yield "tiny_aya cohere2moe", PreTokenizer((_DIGIT_GROUPS, _marked(r"\p{N}{1,3}")))
    yield (
        "tekken",
        PreTokenizer((_cased(r"\p{L}", r"\p{N}", ""),), ignore_merges=True, add_bos=True),
    )
    yield (
        "gpt-4o llama4 kanana2 talkie minimax-m2",
        PreTokenizer((_cased(r"\p{L}", r"\p{N}{1,3}", f"{_CONTRACTION}?"),)),
    )
    yield (
        "granite-embed-multi-97m",
        PreTokenizer((_cased(r"[\p{L}\p{M}]", r"\p{N}{1,3}", f"{_CONTRACTION}?"),), ignore_merges=True),
    )
    yield "kimi-k2", PreTokenizer((_KIMI,))
    not_sign = rf" ?[^(\s|.,!?{ranges.SENTENCE_SIGNS})]+"
    yield "poro-chat", PreTokenizer((not_sign,))
    yield "bloom gpt3-finnish", PreTokenizer((not_sign,), clean_spaces=True)
    yield "viking", PreTokenizer((not_sign, r"\p{N}"))
    yield "superbpe", PreTokenizer((r"\p{N}+", r"(?=(?:[0-9]{3})+(?![0-9]))"))
    yield (
        "chameleon",
        PreTokenizer(
            (
                r"<sentinel:[0-9]+>",
                r"IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
    )
    yield "sarvam-moe", PreTokenizer((_NEWLINES,), byte_level=False)
    yield (
        "gemma4 granite-embed-multi-311m",
        PreTokenizer((_NEWLINES,), byte_level=False, whole_newlines=True, add_bos=True, clean_spaces=True),
    )


PRE_TOKENIZERS = {name: kind for names, kind in _kinds() for name in names.split()}
