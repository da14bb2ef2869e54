"""Names, order and number format of a scrape, and the rates between two."""

from __future__ import annotations

import json

from mlxserver.engine.task import AdapterCounters, Counters, DiskStats, MemoryStats, SlotView, Snapshot
from mlxserver.options.table import compat_text
from mlxserver.telemetry.metrics import Metrics

ROWS = json.loads(compat_text("llama-server/b10621/metrics.json"))
OWN_ROWS = {row["name"]: row for row in json.loads(compat_text("mlxserver/metrics.json"))}
NAMES = [row["name"].removeprefix("llamacpp:") for row in ROWS if row["state"] == "honoured"]


def scrape(metrics: Metrics, *slots: SlotView, deferred: int = 0, **counters: float) -> dict[str, str]:
    text = metrics.render(Snapshot(slots, Counters(**counters), deferred))  # type: ignore[arg-type]
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return dict(line.rsplit(" ", 1) for line in lines)


def test_llama_servers_metrics_come_first_and_in_its_order() -> None:
    metrics = Metrics()
    metrics.request_done("/health", 200, 0.1)
    names = list(scrape(metrics))
    assert names[: len(NAMES)] == [f"llamacpp:{name}" for name in NAMES]
    assert all(name.startswith("mlxserver:") for name in names[len(NAMES) :])


def test_each_metric_has_its_help_and_type() -> None:
    lines = Metrics().render(Snapshot((), Counters(), 0)).splitlines()
    assert lines[0].startswith("# HELP llamacpp:prompt_tokens_total ")
    assert lines[1:3] == ["# TYPE llamacpp:prompt_tokens_total counter", "llamacpp:prompt_tokens_total 0"]
    assert "# TYPE llamacpp:n_tokens_max counter" in lines
    assert "# TYPE llamacpp:requests_deferred gauge" in lines


def test_numbers_have_six_digits() -> None:
    found = scrape(Metrics(), prompt_tokens=1234567, prompt_seconds=0.123456789, predicted_tokens=999999)
    assert found["llamacpp:prompt_tokens_total"] == "1.23457e+06"
    assert found["llamacpp:prompt_seconds_total"] == "0.123457"
    assert found["llamacpp:tokens_predicted_total"] == "999999"


def test_whole_numbers_of_our_own_have_all_digits() -> None:
    text = Metrics().render(Snapshot((), Counters(), 0, memory=MemoryStats(1234567891, 2, 1234567892)))
    assert "\nmlxserver:memory_active_bytes 1234567891\n" in text
    assert "\nmlxserver:memory_cached_bytes 2\n" in text
    assert "\nmlxserver:memory_peak_bytes 1234567892\n" in text


def test_rates_count_from_the_last_scrape() -> None:
    metrics = Metrics()
    first = scrape(
        metrics, prompt_tokens=10, prompt_seconds=2.0, predicted_after_first=3, predicted_seconds=1
    )
    assert first["llamacpp:prompt_tokens_seconds"] == "5"
    assert first["llamacpp:predicted_tokens_seconds"] == "3"
    second = scrape(
        metrics, prompt_tokens=40, prompt_seconds=3.0, predicted_after_first=3, predicted_seconds=1
    )
    assert second["llamacpp:prompt_tokens_seconds"] == "30"
    assert second["llamacpp:predicted_tokens_seconds"] == "0"


def test_slots_at_work() -> None:
    slots = (SlotView(0, 8, True), SlotView(1, 8, False), SlotView(2, 8, True))
    found = scrape(Metrics(), *slots, deferred=4, busy_slots=6, decodes=4)
    assert found["llamacpp:requests_processing"] == "2"
    assert found["llamacpp:requests_deferred"] == "4"
    assert found["llamacpp:n_busy_slots_per_decode"] == "1.5"


def test_requests_are_counted_by_route_and_class_of_status() -> None:
    metrics = Metrics()
    for status in (200, 204, 404):
        metrics.request_done("/props", status, 0.2)
    found = scrape(metrics)
    assert found['mlxserver:http_requests_total{route="/props",status="2xx"}'] == "2"
    assert found['mlxserver:http_requests_total{route="/props",status="4xx"}'] == "1"
    assert found['mlxserver:http_request_seconds_bucket{route="/props",le="0.1"}'] == "0"
    assert found['mlxserver:http_request_seconds_count{route="/props"}'] == "3"


def test_servers_do_not_share_their_counts() -> None:
    Metrics().request_done("/props", 200, 0.1)
    assert not [name for name in scrape(Metrics()) if "props" in name]


def test_types_are_those_of_the_manifest() -> None:
    text = Metrics().render(Snapshot((), Counters(), 0))
    for row in ROWS:
        told = f"# TYPE {row['name']} {row['type']}\n" in text
        assert told is (row["state"] == "honoured"), row["name"]


DISK = DiskStats(
    7, 700, -1, read_blocks=5, hit_blocks=3, wasted_blocks=2, prefetches={"complete": 4, "timeout": 1}
)


def test_the_disk_tier_is_told_of_where_there_is_one() -> None:
    assert "cache_disk" not in Metrics().render(Snapshot((), Counters(), 0))
    text = Metrics().render(Snapshot((), Counters(), 0, disk=DISK))
    assert "\nmlxserver:cache_disk_limit_bytes -1\n" in text
    assert "\nmlxserver:cache_disk_hit_blocks_total 3\n" in text
    assert '\nmlxserver:cache_disk_prefetches_total{end="timeout"} 1\n' in text


def with_adapters(n: int) -> Snapshot:
    counters = {str(i): AdapterCounters(1, 10, 100) for i in range(n)}
    return Snapshot((), Counters(), 0, disk=DISK, adapters=counters)


def test_every_metric_of_our_own_has_a_row_and_every_row_a_metric() -> None:
    metrics = Metrics()
    metrics.request_done("/health", 200, 0.1)
    text = metrics.render(with_adapters(1), {"0": 0})
    told = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE mlxserver:"))
    assert told == {name: row["type"] for name, row in OWN_ROWS.items()}


def test_adapters_are_counted_by_their_ids() -> None:
    text = Metrics().render(with_adapters(2), {"0": 3, "1": 5})
    assert 'mlxserver:lora_requests_total{adapter="3"} 1\n' in text
    assert 'mlxserver:lora_prompt_tokens_total{adapter="5"} 10\n' in text
    assert 'mlxserver:lora_tokens_predicted_total{adapter="5"} 100\n' in text


def test_labels_of_adapters_are_bounded() -> None:
    text = Metrics().render(with_adapters(100), {str(i): i for i in range(90)})
    labels = [line.split('"')[1] for line in text.splitlines() if line.startswith("mlxserver:lora_requests")]
    assert sorted(labels) == sorted([*map(str, range(16)), "other"])
    assert 'mlxserver:lora_requests_total{adapter="other"} 84\n' in text
