"""Records fixtures/lora/smollm2.json: llama-server's probabilities with adapters, in 32-bit floats.

python -m tests.models.lora.record_probabilities --model SmolLM2-135M-Instruct.Q4_1.gguf --server llama-server
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.record_greedy import to_f32, wait_ready
from tests.models.lora.recorded import FILES, FOLDER, N_PREDICT, N_PROBS, PROMPTS, SETS, TARGET


def record(client: httpx.Client, prompt: str, scales: tuple[float, ...]) -> dict[str, Any]:
    """The cache is off: the reference would take over state that other adapters made."""
    body = {
        "prompt": prompt,
        "n_predict": N_PREDICT,
        "temperature": 0,
        "n_probs": N_PROBS,
        "post_sampling_probs": False,
        "cache_prompt": False,
        "ignore_eos": True,
        "lora": [{"id": number, "scale": scale} for number, scale in enumerate(scales)],
    }
    steps = client.post("/completion", json=body).raise_for_status().json()["completion_probabilities"]
    ids = client.post("/tokenize", json={"content": prompt, "add_special": True}).raise_for_status().json()
    return {
        "scales": scales,
        "prompt": ids["tokens"],
        "tokens": [step["id"] for step in steps],
        "top": [[[c["id"], round(c["logprob"], 6)] for c in step["top_logprobs"]] for step in steps],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--port", type=int, default=18112)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        f32 = Path(folder) / "f32.gguf"
        to_f32(args.model, f32)
        command = [args.server, "-m", str(f32), "-c", "2048", "-np", "1", "-ctk", "f32", "-ctv", "f32"]
        # its flash attention computes in 16 bits, whatever the types of keys and values
        command += ["-fa", "off", "--lora", ",".join(str(FOLDER / file) for file in FILES)]
        server = subprocess.Popen([*command, "--port", str(args.port)], stderr=subprocess.DEVNULL)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{args.port}", timeout=300) as client:
                wait_ready(client)
                rows = [record(client, prompt, scales) for scales in SETS for prompt in PROMPTS]
        finally:
            server.terminate()
            server.wait()
    lines = ",\n".join(json.dumps(row) for row in rows)
    TARGET.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
