"""Which tokens end a generation or steer infilling, found by their texts where the file does not tell.

The lists and their order of precedence are those of llama.cpp's vocabulary loader.
"""

from __future__ import annotations

from mlxserver.models.tokenizer.vocabulary import CONTROL, NORMAL, USER_DEFINED, Vocabulary

_BY_TEXT = {
    "eom_id": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}

_EOG_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)

_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


def detect_special_ids(vocab: Vocabulary) -> None:
    """Fills the ids that are still missing, ``eog_ids``, and the attributes that follow from them."""
    for name, texts in _BY_TEXT.items():
        if getattr(vocab, name) < 0:
            setattr(vocab, name, _first_token(vocab, texts))
    vocab.eog_ids |= {vocab.fim_pad, vocab.fim_rep, vocab.fim_sep}
    for text in _EOG_TEXTS:
        if (token := vocab.ids.get(text, -1)) >= 0:
            vocab.eog_ids.add(token)
            vocab.attrs[token] |= CONTROL
    for text in _ALWAYS_SHOWN:
        if (token := vocab.ids.get(text, -1)) >= 0:
            vocab.attrs[token] = USER_DEFINED
    vocab.eog_ids |= {vocab.eos_id, vocab.eot_id, vocab.eom_id}
    vocab.eog_ids.discard(-1)
    _drop_misleading(vocab)


def _first_token(vocab: Vocabulary, texts: tuple[str, ...]) -> int:
    found = [vocab.ids[text] for text in texts if text in vocab.ids]
    if not found:
        return -1
    token = min(found)
    vocab.attrs[token] |= CONTROL
    return token


def _drop_misleading(vocab: Vocabulary) -> None:
    """Models whose ``<|end|>`` ends a channel, or whose ``</s>`` is a plain word, not the generation."""
    present = {vocab.texts[token] for token in vocab.eog_ids}
    has_call = not present.isdisjoint(("<|call|>", "<|calls|>"))
    if has_call and not present.isdisjoint(("<|return|>", "<|flush|>")) and "<|end|>" in present:
        _demote(vocab, "<|end|>", USER_DEFINED)
    if "<|tool_response>" in present and "</s>" in present:
        _demote(vocab, "</s>", NORMAL)


def _demote(vocab: Vocabulary, text: str, attr: int) -> None:
    token = vocab.ids[text]
    vocab.eog_ids.discard(token)
    vocab.attrs[token] = attr
