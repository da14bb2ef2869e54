"""What mlxserver is to reach, in figures of the workloads."""

from __future__ import annotations

from dataclasses import dataclass

PEER, BARE = "mlx_lm.server", "bare loop"


@dataclass(frozen=True)
class Target:
    """``over``: whose figure the own one is divided by; without it the figure itself counts."""

    title: str
    workload: str
    figure: str
    bound: float
    over: str = ""
    at_least: bool = False

    def met(self, found: float) -> bool:
        return found >= self.bound if self.at_least else found <= self.bound


def rate(workload: str, figure: str, bound: float) -> Target:
    model = "2 layers" if workload == "tiny" else "SmolLM2"
    return Target(f"{figure}, {model}, to the bare loop", workload, figure, bound, BARE, at_least=True)


FIRST_TOKENS, WARM = "time to all first tokens (s)", "first token, warm (s)"
TARGETS = (
    rate("streams", "tokens/s, 1 stream", 0.95),
    rate("streams", "tokens/s, 4 streams", 0.95),
    rate("streams", "tokens/s, 8 streams", 0.95),
    rate("tiny", "tokens/s, 8 streams", 0.6),
    Target("largest gap while 4,000 tokens arrive, to the median", "arrive-4000", "largest / median gap", 4),
    Target("first token of a known prefix, warm to cold", "warm", "warm / cold", 0.05),
    Target("first token of a known prefix, to mlx_lm.server's", "warm", WARM, 0.5, PEER),
    Target("8 chats over one prompt, to mlx_lm.server", "shared", FIRST_TOKENS, 0.5, PEER),
    Target("most memory of MLX's arrays", "memory", "most of MLX's arrays / weights + keys + values", 1.1),
)
