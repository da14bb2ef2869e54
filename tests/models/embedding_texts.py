"""What recorded embeddings are of."""

from __future__ import annotations

TEXTS = (
    "Hello world",
    "The sun rises in the east.",
    "A sunrise over the sea, with clouds!",
    "Ein schöner Tag am Strand",
    "日本語のテキストです",
    "Café naïve résumé coöperate",
    "def f(x): return x+1",
    "ÅNGSTRÖM Straße İstanbul",
    "emoji 😀 text 🚀",
    "tabs\tand\nnewlines",
    "word " * 100,
    "Don't stop; can't won't — “quotes”",
    "100% of $5.00 = 5€",
    "مرحبا بالعالم",
    "[CLS] special [SEP] tokens [MASK]",
    "~`^<>=+|",
    "Привет, мир! Ёлка",
    "ﬁligree ½ ² ™ Ⅷ ǅ",
    "",
    "What is the capital of France?",
)
TINY_TEXTS = ("hello world", "the sun rises, unable!", "a", "", "[SEP] x [MASK] 42", "Café EDED zzz")
QUERY = "hello world"
DOCUMENTS = ("the sun rises", "hello", "unable cafe", "")
