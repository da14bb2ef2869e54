"""What llama-server's probabilities with adapters were recorded for, and where they are kept."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "fixtures" / "lora"
TARGET = FOLDER / "smollm2.json"
FILES = ("lora-a.gguf", "lora-b.gguf", "lora-c.gguf")

N_PREDICT = 6
N_PROBS = 8
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "<|im_start|>user\nName a fruit.<|im_end|>\n<|im_start|>assistant\n",
)
SETS: tuple[tuple[float, float, float], ...] = (
    (0.0, 0.0, 0.0),
    *((scale, 0.0, 0.0) for scale in (1.0, 0.5, -1.0)),
    *((0.0, scale, 0.0) for scale in (1.0, 0.5, -1.0)),
    *((0.0, 0.0, scale) for scale in (1.0, 0.5, -1.0)),
    (1.0, 1.0, 0.0),
)
"""The scale of each of FILES."""
