"""The prompts of the greedy comparison with llama-server, and where its answers are kept."""

from __future__ import annotations

from pathlib import Path

TARGET = Path(__file__).resolve().parents[2] / "fixtures" / "greedy" / "smollm2.json"
N_PREDICT = 32

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "The three primary colours are",
    "To make a good cup of tea, first",
    "SELECT name, COUNT(*) FROM users",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8, 13,",
    "Q: Why is the sky blue?\nA:",
    "import numpy as np\n\ndef softmax(x):\n",
    "The quick brown fox",
    "<|im_start|>user\nName a fruit.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about rain.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "Il était une fois",
    "Die Hauptstadt von Deutschland ist",
    "# Shopping list\n\n- milk\n- bread\n-",
    '{"name": "Ada", "born": 1815, "known_for": "',
    "In 1969, the first humans",
)
