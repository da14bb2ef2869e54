"""How near a prompt whose middle was taken over from other positions is to the same prompt evaluated cold:
for llama-server and mlxserver, each against its own cold run, on the same tokens and positions.

  python -m bench.shifted_reuse --model FILE.gguf --llama-server BINARY [--json FILE]

Part of a text is evaluated, a stretch near its beginning goes (n_cache_reuse), and what follows is forced
token by token: prompts that grow by one, one token asked for, its best candidates compared.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.running import Server, running
from mlxserver.validate.options import text_of

N_TOKENS, KNOWN = 560, 480
"""Tokens of the text; the first ones are known before the stretch goes."""
STRETCHES = ((8, 16), (40, 80), (200, 100))
"""(first position, tokens) of what is removed."""
N_PROBS, N_TOP = 100, 10
SHORTEST_RUN = 8
OPTIONS = "-c 2048 -np 1 -ctk f32 -ctv f32 --cache-ram 0 -t 1"
Candidates = dict[int, float]
"""Log-probabilities by token, the best first."""


@dataclass(frozen=True)
class Agreement:
    server: str
    first: int
    n_removed: int
    n: int
    """Positions compared."""
    same_best: float
    """Share of the positions whose best tokens agree."""
    same_decided: float
    """Of those where the cold run's two best are more than 0.1 nats apart."""
    mean_difference: float
    """Of the log-probabilities of the cold run's ten best tokens."""
    mean_kl: float
    """Over the candidates that both list, each side scaled to sum up to 1."""


def forced(server: Server, prompt: Sequence[int], start: int, **fields: object) -> list[Candidates]:
    """What the server expects after the first ``start`` tokens, and after each further one."""
    found = []
    for n in range(start, len(prompt) + 1):
        answer = server.ask(prompt[:n], n_probs=N_PROBS, cache_prompt=True, **fields)
        top = answer["completion_probabilities"][0]["top_logprobs"]
        found.append({each["id"]: each["logprob"] for each in top})
    return found


def measure(name: str, server: Server, tokens: list[int], first: int, n_removed: int) -> Agreement:
    shortened = tokens[:first] + tokens[first + n_removed :]
    start = KNOWN - n_removed + 1
    server.ask(tokens[:KNOWN], cache_prompt=False)
    answer = server.ask(shortened[:start], n_cache_reuse=SHORTEST_RUN)
    if answer["timings"]["cache_n"] != start - 1:
        raise RuntimeError(f"{name} took {answer['timings']['cache_n']} tokens over, not {start - 1}")
    moved = forced(server, shortened, start, n_cache_reuse=SHORTEST_RUN)
    server.ask(shortened[:start], cache_prompt=False)
    cold = forced(server, shortened, start, n_cache_reuse=0)
    return agreement(name, first, n_removed, cold, moved)


def agreement(
    name: str, first: int, n_removed: int, cold: list[Candidates], moved: list[Candidates]
) -> Agreement:
    pairs = list(zip(cold, moved, strict=True))
    decided = [(p, q) for p, q in pairs if gap(p) > 0.1]
    changes = [abs(p[t] - q[t]) for p, q in pairs for t in list(p)[:N_TOP] if t in q]
    return Agreement(
        name,
        first,
        n_removed,
        len(pairs),
        statistics.mean(best(p) == best(q) for p, q in pairs),
        statistics.mean(best(p) == best(q) for p, q in decided),
        statistics.mean(changes),
        statistics.mean(divergence(p, q) for p, q in pairs),
    )


def best(candidates: Candidates) -> int:
    return next(iter(candidates))


def gap(candidates: Candidates) -> float:
    first, second, *_ = candidates.values()
    return first - second


def divergence(p: Candidates, q: Candidates) -> float:
    common = [token for token in p if token in q]
    of_p, of_q = (math.log(sum(math.exp(each[t]) for t in common)) for each in (p, q))
    return sum(math.exp(p[t] - of_p) * (p[t] - of_p - q[t] + of_q) for t in common)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    options = ["-m", str(args.model), *shlex.split(OPTIONS)]
    commands = {
        "llama-server": [str(args.llama_server), *options],
        "mlxserver": [sys.executable, "-m", "mlxserver", *options, "--dtype", "float32"],
    }
    found: list[Agreement] = []
    tokens: list[int] = []
    for name, command in commands.items():
        with running(command, Path(tempfile.mkdtemp()) / "server.log") as server:
            own = server.post("/tokenize", {"content": text_of(None), "add_special": True})["tokens"]
            tokens = tokens or own[:N_TOKENS]
            if own[:N_TOKENS] != tokens:
                raise RuntimeError("the servers' tokens differ")
            for stretch in STRETCHES:
                found.append(measure(name, server, tokens, *stretch))
                print(found[-1], flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
