"""``/metrics``: llama-server's counters and gauges by its names and in its number format, then our own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from mlxserver.engine.task import Counters, DiskStats, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4"
DURATIONS = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Upper bounds of the request durations' buckets, in seconds."""

COUNTERS = (
    ("prompt_tokens_total", "prompt_tokens", "Prompt tokens evaluated, without those taken from the cache"),
    ("prompt_tokens_cached_total", "prompt_tokens_cached", "Prompt tokens taken from the cache"),
    ("prompt_seconds_total", "prompt_seconds", "Seconds spent on evaluating prompts"),
    ("tokens_predicted_total", "predicted_tokens", "Tokens generated"),
    ("tokens_predicted_seconds_total", "predicted_seconds", "Seconds spent on generating tokens"),
    ("n_decode_total", "decodes", "Forward passes of the model"),
    ("n_tokens_max", "n_tokens_max", "Most tokens that a slot has held"),
    ("spec_decode_num_draft_tokens_total", "draft_tokens", "Tokens drafted"),
    ("spec_decode_num_accepted_tokens_total", "draft_accepted", "Drafted tokens that were accepted"),
    ("spec_decode_num_drafts_total", "drafts", "Drafts verified"),
)
"""(name, field of ``Counters``, help)."""

CACHE = (
    ("cache_prompts", "prompts", "counter", "Prompts that were started"),
    ("cache_hits", "hits", "counter", "Prompts of which the cache held a part"),
    ("cache_evictions", "evictions", "counter", "Entries dropped to make room"),
    ("cache_bytes", "nbytes", "gauge", "Bytes of state stored beyond the slots"),
    ("cache_limit_bytes", "limit", "gauge", "Most bytes to store (--cache-ram); -1 without bound"),
    ("cache_entries", "entries", "gauge", "Nodes of the prefix trie"),
    ("cache_snapshots", "snapshots", "gauge", "Stored states that cannot be cut (windows, recurrent layers)"),
)
"""(name, field of ``CacheStats``, kind, help)."""

DISK = (
    ("cache_disk_blocks", "blocks", "gauge", "Files in --cache-disk"),
    ("cache_disk_bytes", "nbytes", "gauge", "Bytes of these files"),
    ("cache_disk_limit_bytes", "limit", "gauge", "Most bytes (--cache-disk-size); -1 without bound"),
    ("cache_disk_written_blocks", "written_blocks", "counter", "Blocks and snapshots written"),
    ("cache_disk_written_bytes", "written_bytes", "counter", "Bytes written"),
    ("cache_disk_removed_blocks", "removed_blocks", "counter", "Blocks and snapshots removed"),
    ("cache_disk_dropped_blocks", "dropped_blocks", "counter", "Blocks and snapshots that were not written"),
    ("cache_disk_errors", "errors", "counter", "Reads and writes that an error ended"),
    ("cache_disk_read_blocks", "read_blocks", "counter", "Blocks and snapshots read"),
    ("cache_disk_read_bytes", "read_bytes", "counter", "Bytes of state read"),
    ("cache_disk_hit_blocks", "hit_blocks", "counter", "Of these, those that their prompt took over"),
    ("cache_disk_hit_bytes", "hit_bytes", "counter", "Bytes of these"),
    ("cache_disk_wasted_blocks", "wasted_blocks", "counter", "Of these, those that their prompt did not use"),
    ("cache_disk_wasted_bytes", "wasted_bytes", "counter", "Bytes of these"),
    ("cache_disk_prefetch_seconds", "prefetch_seconds", "counter", "Seconds spent on reading ahead"),
)
"""(name, field of ``DiskStats``, kind, help)."""

MEMORY = (
    ("memory_active_bytes", "active", "Bytes of MLX's arrays"),
    ("memory_cached_bytes", "cached", "Bytes that MLX keeps for later arrays"),
    ("memory_peak_bytes", "peak", "Most bytes of MLX's arrays since the start"),
)
"""(name, field of ``MemoryStats``, help)."""

ADAPTERS = (
    ("lora_requests", "requests", "Requests that used the adapter and have ended"),
    ("lora_prompt_tokens", "prompt_tokens", "Prompt tokens evaluated with it, without cached ones"),
    ("lora_tokens_predicted", "predicted_tokens", "Tokens generated with it"),
)
"""(name, field of ``AdapterCounters``, help); labelled with the adapter's id."""
MAX_ADAPTER_LABELS = 16
"""Adapters of higher ids, and those that were unloaded, are counted together as ``other``."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """Tokens a second since the scrape before."""

    prompt: float = 0.0
    predicted: float = 0.0


class _EngineCollector(Collector):
    """The engine's numbers at the time of a scrape."""

    def __init__(self) -> None:
        self._scraped = Counters()
        self._snapshot: Snapshot | None = None
        self._rates = _Rates()
        self._adapter_ids: Mapping[str, int] = {}

    def observe(self, snapshot: Snapshot, adapter_ids: Mapping[str, int]) -> None:
        self._adapter_ids = adapter_ids
        now, before = snapshot.counters, self._scraped
        self._rates = _Rates(
            prompt=_rate(
                now.prompt_tokens - before.prompt_tokens, now.prompt_seconds - before.prompt_seconds
            ),
            predicted=_rate(
                now.predicted_after_first - before.predicted_after_first,
                now.predicted_seconds - before.predicted_seconds,
            ),
        )
        self._scraped, self._snapshot = now, snapshot

    def describe(self) -> list[Metric]:
        """Nothing can be said before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        if self._snapshot is None:
            return
        counters = self._snapshot.counters
        for name, field, help in COUNTERS:
            yield _metric(name, help, "counter", getattr(counters, field))
        for name, help, value in self._gauges(self._snapshot):
            yield _metric(name, help, "gauge", value)
        for name, field, kind, help in CACHE:
            metric = Metric(f"mlxserver:{name}", help, kind)
            metric.samples.append(Sample(_sample_name(metric), {}, getattr(self._snapshot.cache, field)))
            yield metric
        for name, field, help in MEMORY:
            metric = Metric(f"mlxserver:{name}", help, "gauge")
            metric.samples.append(Sample(metric.name, {}, getattr(self._snapshot.memory, field)))
            yield metric
        if self._snapshot.disk is not None:
            yield from _disk(self._snapshot.disk)
        yield from self._adapters(self._snapshot)

    def _adapters(self, snapshot: Snapshot) -> Iterator[Metric]:
        for name, field, help in ADAPTERS if snapshot.adapters else ():
            totals: dict[str, int] = {}
            for digest, counters in snapshot.adapters.items():
                id = self._adapter_ids.get(digest, MAX_ADAPTER_LABELS)
                label = str(id) if id < MAX_ADAPTER_LABELS else "other"
                totals[label] = totals.get(label, 0) + getattr(counters, field)
            metric = Metric(f"mlxserver:{name}", help, "counter")
            for label, total in sorted(totals.items()):
                metric.samples.append(Sample(_sample_name(metric), {"adapter": label}, total))
            yield metric

    def _gauges(self, snapshot: Snapshot) -> list[tuple[str, str, float]]:
        counters = snapshot.counters
        n_busy = sum(slot.is_processing for slot in snapshot.slots)
        return [
            ("prompt_tokens_seconds", "Prompt tokens a second since the last scrape", self._rates.prompt),
            ("predicted_tokens_seconds", "Generated tokens a second since then", self._rates.predicted),
            ("requests_processing", "Slots at work", n_busy),
            ("requests_deferred", "Requests that wait for a slot", snapshot.deferred),
            (
                "n_busy_slots_per_decode",
                "Slots at work in a forward pass, on average",
                counters.busy_slots / max(counters.decodes, 1),
            ),
        ]


class Metrics:
    """The registry of a server. Labels are the table's routes and classes of status, so they are few."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._engine = _EngineCollector()
        self._registry = CollectorRegistry()
        self._registry.register(self._engine)
        self._requests = Counter(
            "mlxserver:http_requests",
            "HTTP requests answered",
            ["route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "mlxserver:http_request_seconds",
            "Seconds from a request's arrival to the end of its answer",
            ["route"],
            buckets=DURATIONS,
            registry=self._registry,
        )

    def request_done(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, f"{status // 100}xx").inc()
        self._seconds.labels(route).observe(seconds)

    def render(self, snapshot: Snapshot, adapter_ids: Mapping[str, int] | None = None) -> str:
        """The text of a scrape, which also begins a new window for the rates.

        ``adapter_ids``: the ids by the adapters' digests.
        """
        self._engine.observe(snapshot, adapter_ids or {})
        return "".join(_lines(metric) for metric in self._registry.collect())


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _disk(stats: DiskStats) -> Iterator[Metric]:
    for name, field, kind, help in DISK:
        metric = Metric(f"mlxserver:{name}", help, kind)
        metric.samples.append(Sample(_sample_name(metric), {}, getattr(stats, field)))
        yield metric
    help = "Prompts for which something was to be read, by how that ended"
    metric = Metric("mlxserver:cache_disk_prefetches", help, "counter")
    for reason, n in stats.prefetches.items():
        metric.samples.append(Sample(_sample_name(metric), {"end": reason}, n))
    yield metric


def _metric(name: str, help: str, kind: str, value: float) -> Metric:
    """Prometheus would have every counter end in ``_total``; llama-server's do not all."""
    metric = Metric(f"llamacpp:{name}", help, kind)
    metric.samples.append(Sample(metric.name, {}, value))
    return metric


def _sample_name(metric: Metric) -> str:
    is_ours = metric.type == "counter" and not metric.name.startswith("llamacpp:")
    return f"{metric.name}_total" if is_ours else metric.name


def _lines(metric: Metric) -> str:
    name = _sample_name(metric)
    head = f"# HELP {name} {metric.documentation}\n# TYPE {name} {metric.type}\n"
    return head + "".join(_line(sample) for sample in metric.samples)


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
    number = _number(sample)
    return f"{sample.name}{{{labels}}} {number}\n" if labels else f"{sample.name} {number}\n"


def _number(sample: Sample) -> str:
    """llama-server's have six digits; of our own whole numbers have all."""
    is_ours = sample.name.startswith("mlxserver:") and float(sample.value).is_integer()
    return str(int(sample.value)) if is_ours else f"{sample.value:g}"
