"""Records fixtures/greedy/smollm2.json: what llama-server answers greedily, in 32-bit floats.

python tests/e2e/record_greedy.py --model SmolLM2-135M-Instruct.Q4_1.gguf --server path/to/llama-server
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import gguf
import httpx
import numpy as np

from tests.e2e.prompts import N_PREDICT, PROMPTS, TARGET

SKIPPED = {"general.file_type", "general.quantization_version", "general.architecture"}


def to_f32(source: Path, target: Path) -> None:
    """The same GGUF file with every tensor dequantised."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name in SKIPPED or name.startswith("GGUF."):
            continue
        item_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=item_type)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def wait_ready(client: httpx.Client) -> None:
    for _ in range(600):
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the reference did not start")


def record(client: httpx.Client, prompt: str) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": N_PREDICT, "temperature": 0, "n_probs": 2, "return_tokens": True}
    answer = client.post("/completion", json=body).raise_for_status().json()
    steps = answer["completion_probabilities"]
    return {
        "prompt": prompt,
        "content": answer["content"],
        "tokens": [step["id"] for step in steps],
        "top": [[[c["id"], round(c["logprob"], 6)] for c in step["top_logprobs"]] for step in steps],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--port", type=int, default=18111)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        f32 = Path(folder) / "f32.gguf"
        to_f32(args.model, f32)
        command = [args.server, "-m", str(f32), "-c", "2048", "-np", "1", "-ctk", "f32", "-ctv", "f32"]
        server = subprocess.Popen([*command, "--port", str(args.port)], stderr=subprocess.DEVNULL)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{args.port}", timeout=300) as client:
                wait_ready(client)
                rows = [record(client, prompt) for prompt in PROMPTS]
        finally:
            server.terminate()
            server.wait()
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    TARGET.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
