"""Random JSON schemas at random: how many are refused, and whether every answer to the others fits.

    python -m bench.schemas [--count 1000] [--seed 1]

Each text is a walk through the grammar's masks where every allowed token is as likely as any other, which is
harder than any temperature of a model. Ends with 1 when a text does not fit its schema.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mlxserver.sampling.grammar.compiler import GrammarCompiler
from mlxserver.sampling.params import Grammar, SamplerError
from tests.sampling.byte_tokens import ByteTokens
from tests.sampling.random_schemas import random_text, schemas


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    started = time.perf_counter()
    run(arguments.count, arguments.seed, outcomes, reasons)
    seconds = time.perf_counter() - started
    print(f"{sum(outcomes.values())} schemas in {seconds:.1f} s: {dict(outcomes)}")
    for reason, count in reasons.most_common(10):
        print(f"  {count:5} refused: {reason}")
    return 1 if outcomes["does not fit"] else 0


def run(count: int, seed: int, outcomes: Counter[str], reasons: Counter[str]) -> None:
    tokens = ByteTokens()
    compiler = GrammarCompiler(tokens)

    @seeded(seed)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(schemas(), st.integers(0, 2**30))
    def one(schema: dict[str, Any], walk: int) -> None:
        grammar = Grammar("json_schema", json.dumps(schema))
        try:
            text = random_text(compiler, grammar, tokens, walk)
        except SamplerError as error:
            outcomes["refused"] += 1
            reasons[str(error).splitlines()[-1][:60]] += 1
            return
        outcome = "too long" if text is None else "fits" if _fits(schema, text) else "does not fit"
        outcomes[outcome] += 1
        if outcome == "does not fit":
            print(json.dumps(schema), text, sep="\n    ")

    one()


def _fits(schema: dict[str, Any], text: bytes) -> bool:
    return bool(Draft202012Validator(schema).is_valid(json.loads(text.decode())))


if __name__ == "__main__":
    sys.exit(main())
