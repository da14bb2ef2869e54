"""What a JSON schema costs: four streams that follow one beside four that do not, on one server.

    python -m bench.constrained -m MODEL [--rounds 5] [--tokens 48]

Rounds alternate the two, so that a busy machine slows both; the figure is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.contestants import serving
from bench.total_rate import total_rate

STREAMS = 4
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
}
SCHEMA = {"type": "array", "items": PERSON, "minItems": 100}
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 1},
}


def rate(url: str, n_predict: int, wanted: dict[str, Any], pool: ThreadPoolExecutor) -> float:
    """Of all streams, with the same further fields."""
    bodies = [{"prompt": f"{number}. People as JSON: "} | wanted for number in range(STREAMS)]
    return total_rate(url, bodies, n_predict, pool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    arguments = parser.parse_args()
    logs = Path(tempfile.mkdtemp())
    with serving("mlxserver", arguments.model, logs) as (url, _), ThreadPoolExecutor(STREAMS) as pool:
        for name, sampler in SAMPLERS.items():
            forms = {"plain": sampler, "schema": sampler | {"json_schema": SCHEMA}}
            for form in forms.values():
                rate(url, 4, form, pool)
            rounds = [
                {form: rate(url, arguments.tokens, wanted, pool) for form, wanted in forms.items()}
                for _ in range(arguments.rounds)
            ]
            plain, schema = (statistics.median(r[form] for r in rounds) for form in forms)
            ratio = statistics.median(r["schema"] / r["plain"] for r in rounds)
            print(f"{name}: plain {plain:.1f} tokens/s, schema {schema:.1f} tokens/s, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
