"""A loaded model as the rest of the server sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Token ids and bytes, by llama.cpp's rules. A missing id is -1."""

    n_vocab: int
    bos_id: int
    eos_id: int
    add_bos: bool
    add_eos: bool
    sep_id: int
    add_sep: bool
    eog_ids: frozenset[int]
    """Every end-of-generation token (EOS, EOT, EOM, ...)."""
    fim_pre: int
    fim_suf: int
    fim_mid: int
    fim_rep: int
    fim_sep: int

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """``add_special`` adds BOS/EOS where the vocabulary wants them; with ``parse_special`` the text
        of a special token becomes that token."""
        ...

    def piece(self, token: int, special: bool = True) -> bytes:
        """The bytes of one token; a control token is empty unless ``special``."""
        ...

    def decode(self, tokens: Sequence[int], special: bool = True) -> bytes:
        """llama.cpp's detokenize (a SentencePiece leading space is removed)."""
        ...

    def is_special(self, token: int) -> bool:
        """A control or unknown token, whose text is not shown unless asked for."""
        ...


POOLINGS = ("none", "mean", "cls", "last", "rank")
"""Ways to make one vector of a prompt, numbered as in llama.cpp."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What ``/props`` and ``/v1/models`` tell of a model."""

    path: str
    """As given: the ``-m`` argument, or the repository for ``-hf``."""
    architecture: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    """Bytes of the weights as loaded."""
    ftype: str
    """llama.cpp's name of the weights' type as loaded: ``all F32``, ``Q4_1``, ``BF16``, ..."""
    bos_text: str = ""
    eos_text: str = ""
    chat_template: str = ""
    chat_template_tool_use: str = ""
    sampling_defaults: dict[str, Any] = field(default_factory=dict)
    """``general.sampling.*`` of a GGUF file, keyed by the SamplingParams field."""
    media_marker: str = ""
    rope: str = ""
    """Tells one rotary embedding of the same weights from another; of no particular form."""
    pooling: str = ""
    """How the model's embeddings are meant to be pooled, where it says so."""
    rerank_template: str = ""
    """A prompt with ``{query}`` and ``{document}``."""


@dataclass(frozen=True, slots=True)
class Model:
    """``module`` is an mlx-lm model: ``module(tokens (B, L), cache=[...])`` gives logits (B, L, n_vocab).

    Or it is one of ``models.encoders``, which has ``hidden`` instead.
    """

    module: Any
    tokenizer: Tokenizer
    info: ModelInfo
    classifier: Any = None
    """A ``models.classifier.Classifier``, where the model has one."""

    @property
    def is_encoder(self) -> bool:
        return hasattr(self.module, "hidden")


def piece_text(tokenizer: Tokenizer, token: int) -> str:
    """The text of one token, special or not; empty for a missing one (-1)."""
    return tokenizer.piece(token).decode("utf-8", "replace") if token >= 0 else ""
