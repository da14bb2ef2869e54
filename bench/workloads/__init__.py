"""The workloads by the names that ``--only`` takes."""

from __future__ import annotations

from bench.contestants import Needs
from bench.workload import Workload
from bench.workloads.agent import agent
from bench.workloads.arrival import arrival
from bench.workloads.burst import burst
from bench.workloads.chats import chats
from bench.workloads.long_context import long_context
from bench.workloads.memory import memory
from bench.workloads.mixed import mixed
from bench.workloads.shared_prompt import shared_prompt
from bench.workloads.start import start
from bench.workloads.streams import Streams
from bench.workloads.warm import warm

WORKLOADS: dict[str, Workload] = {
    "start": Workload("start-up", start),
    "streams": Workload("streams", Streams((1, 2, 4, 8, 16), 64), Needs(slots=16)),
    "tiny": Workload("streams of a model of 2 layers", Streams((1, 8), 512), model="tiny"),
    "warm": Workload("a known prefix of 1,500 tokens", warm, Needs(slots=2, context=2048)),
    "shared": Workload("8 chats over one system prompt of 1,000 tokens", shared_prompt, Needs(context=1536)),
    "arrive-700": Workload("700 tokens arrive beside a stream", arrival(700), Needs(slots=4, context=2048)),
    "arrive-4000": Workload("4,000 tokens arrive beside one", arrival(4000), Needs(slots=2, context=5120)),
    "chats": Workload("4 chats of 5 turns", chats, Needs(slots=4, context=1536)),
    "agent": Workload("an agent that drops old tool results", agent, Needs(slots=2, context=2560)),
    "agent-reuse": Workload(
        "the same with --cache-reuse 64", agent, Needs(slots=2, context=2560, cache_reuse=64)
    ),
    "burst": Workload("64 short requests at once, 8 slots", burst),
    "mixed": Workload("8 streams of different sampling", mixed),
    "long": Workload("short streams beside 4,000 tokens", long_context, Needs(slots=9, context=4608)),
    "memory": Workload("8 slots of 1,000 tokens", memory, Needs(context=1024), watch_memory=True),
}
