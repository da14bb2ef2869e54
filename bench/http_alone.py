"""What the HTTP side costs by itself: streamed tokens/s, latency and memory with an engine that does nothing.

The server (``bench.stub_server``) has a process of its own; this one is the client, on plain sockets, and
counts events without reading their JSON. Variants alternate; figures are medians. ``us/token`` is the
processor time of the whole server process, which other load on the machine touches less than tokens/s.

    python -m bench.http_alone --model MODEL.gguf [--tree NAME=FOLDER ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CPUCLOCK_SCHED = 2
"""With a process's number: the clock of its processor time, in Linux."""
PAGE = os.sysconf("SC_PAGE_SIZE")
ALL_AT_ONCE = -1.0

Figures = dict[str, float]


@dataclass(frozen=True)
class Variant:
    """``tree``: the checkout whose package is served."""

    name: str
    kind: str
    tree: Path


@dataclass
class Stub:
    port: int
    pid: int

    @property
    def cpu_seconds(self) -> float:
        return time.clock_gettime((~self.pid << 3) | CPUCLOCK_SCHED)

    @property
    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE


@contextlib.contextmanager
def serving(variant: Variant, model: Path, *arguments: str) -> Iterator[Stub]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = Path(__file__).with_name("stub_server.py")
    command = [sys.executable, str(script), variant.kind, "--model", str(model), "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": f"{variant.tree}:{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen([*command, *arguments], env=environment, cwd=variant.tree)
    try:
        _wait_until_open(port, process)
        yield Stub(port, process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def _wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError("the stub server did not start")


def request(path: str, **body: Any) -> bytes:
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def body_of(path: str, n_predict: int, **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"n_predict": n_predict, "stream": True} | fields
    if "chat" in path:
        return given | {"messages": [{"role": "user", "content": "Tell me a story."}]}
    return given | {"prompt": "Once upon a time"}


@dataclass
class Connection:
    """Counts what one keep-alive connection gets; an answer ends with the last chunk or its length."""

    port: int
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)
    keeps: bool = False

    def __post_init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.n_events = 0
        self.is_done = False
        self._tail, self._n_left = b"", -1

    def ask(self, data: bytes) -> None:
        self.is_done, self._tail, self._n_left = False, b"", -1
        self.socket.sendall(data)

    def read(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise RuntimeError("the server closed the connection")
        if self.keeps:
            self.arrivals.append((time.perf_counter(), data))
        self.n_events += data.count(b"data: ")
        if not self._tail:
            self._n_left = _content_length(data)
        self._n_left -= len(data)
        self._tail = (self._tail + data)[-16:]
        self.is_done = self._n_left == 0 or self._tail.endswith(b"\r\n0\r\n\r\n")


def _content_length(data: bytes) -> int:
    """Bytes of an answer with a length, its head included; -1 for a chunked one."""
    head, separator, _ = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return len(head) + len(separator) + int(length[1]) if length else -1


def play(connections: list[Connection], data: bytes, n_rounds: int = 1) -> float:
    """Sends ``data`` on every connection, again as soon as it was answered; seconds until all is answered."""
    left = {id(connection): n_rounds for connection in connections}
    start = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.ask(data)
        while selector.get_map():
            for key, _ in selector.select():
                connection = key.data
                connection.read()
                if connection.is_done:
                    left[id(connection)] -= 1
                    if left[id(connection)]:
                        connection.ask(data)
                    else:
                        selector.unregister(connection.socket)
    return time.perf_counter() - start


def throughput(stub: Stub, path: str, n_streams: int, n_predict: int) -> Figures:
    connections = [Connection(stub.port) for _ in range(n_streams)]
    play(connections, request(path, **body_of(path, 64)))
    cpu, own = stub.cpu_seconds, time.process_time()
    seconds = play(connections, request(path, **body_of(path, n_predict)))
    n = n_streams * n_predict
    for connection in connections:
        connection.socket.close()
    label = f"{path}, {n_streams} stream{'s' if n_streams > 1 else ''}"
    return {
        f"{label}: tokens/s": n / seconds,
        f"{label}: us/token": 1e6 * (stub.cpu_seconds - cpu) / n,
        f"{label}: client's share of a core": (time.process_time() - own) / seconds,
    }


def short_answers(stub: Stub, n_streams: int, n_rounds: int) -> Figures:
    connections = [Connection(stub.port) for _ in range(n_streams)]
    data = request("/completion", **body_of("/completion", 1, stream=False))
    play(connections, data, 10)
    cpu = stub.cpu_seconds
    seconds = play(connections, data, n_rounds)
    n = n_streams * n_rounds
    return {
        "answers of one token: requests/s": n / seconds,
        "answers of one token: us/request": 1e6 * (stub.cpu_seconds - cpu) / n,
    }


def latency(variant: Variant, model: Path, n_streams: int, n_predict: int = 400) -> Figures:
    """From the engine's event to the bytes at the client, at 200 steps/s."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        with serving(variant, model, "--seconds", "0.005", "--times", str(times)) as stub:
            connections = [Connection(stub.port, keeps=True) for _ in range(n_streams)]
            play(connections, request("/completion", **body_of("/completion", n_predict)))
        emitted = {int(token): t for token, t in json.loads(times.read_text()).items()}
    found = [
        t - emitted[int(token)]
        for connection in connections
        for t, data in connection.arrivals
        for token in re.findall(rb'"tokens":\[(\d+)\]', data)
    ]
    found.sort()
    label = f"latency, {n_streams} stream{'s' if n_streams > 1 else ''}"
    return {
        f"{label}: median (ms)": 1e3 * found[len(found) // 2],
        f"{label}: 99 % (ms)": 1e3 * found[len(found) * 99 // 100],
    }


def long_prompt(variant: Variant, model: Path, path: str, n_bytes: int = 1_000_000) -> Figures:
    """The largest gap of a running stream, 200 steps/s, while a long prompt arrives."""
    sentence = "The quick brown fox, which was 27 years old, jumped over the lazy dog's house. "
    text = sentence * (n_bytes // len(sentence))
    body: dict[str, Any] = {"n_predict": 1, "stream": False}
    body |= {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    with serving(variant, model, "--seconds", "0.005") as stub:
        running = Connection(stub.port, keeps=True)
        arriving = Connection(stub.port)
        data = request(path, **body)
        span: list[float] = []

        def arrive() -> None:
            time.sleep(0.5)
            span.append(time.perf_counter())
            play([arriving], data)
            span.append(time.perf_counter())

        thread = threading.Thread(target=arrive)
        thread.start()
        play([running], request("/completion", **body_of("/completion", 800)))
        thread.join()
    times = [t for t, _ in running.arrivals]
    gaps = [(b - a, b) for a, b in zip(times, times[1:], strict=False)]
    before = [gap for gap, t in gaps if t < span[0]]
    during = [gap for gap, t in gaps if t > span[0] and t - gap < span[1]]
    label = f"1 MB prompt, {path}"
    return {
        f"{label}: median gap before (ms)": 1e3 * statistics.median(before),
        f"{label}: largest gap (ms)": 1e3 * max(during),
        f"{label}: seconds to its answer": span[1] - span[0],
    }


def idle_memory(variant: Variant, model: Path, n_streams: int = 400) -> Figures:
    """Of a stream that has begun and waits for its first token."""
    with serving(variant, model, "--silent") as stub:
        data = request("/completion", **body_of("/completion", 64))
        connections = [_begun(stub, data) for _ in range(20)]
        before = stub.resident_bytes
        connections += [_begun(stub, data) for _ in range(n_streams)]
        after = stub.resident_bytes
        for connection in connections:
            connection.socket.close()
    return {"an idle stream (KB)": (after - before) / n_streams / 1e3}


def _begun(stub: Stub, data: bytes) -> Connection:
    connection = Connection(stub.port)
    connection.ask(data)
    connection.read()
    return connection


PATHS = ("/completion", "/v1/completions", "/v1/chat/completions")
PARTS = ("streams", "one", "burst", "short", "latency", "long", "memory")


def measure(variant: Variant, model: Path, parts: list[str], n_streams: int, n_predict: int) -> Figures:
    figures: Figures = {}
    paths = PATHS if variant.kind == "app" else PATHS[:1]
    with serving(variant, model) as stub:
        if "streams" in parts:
            for path in paths:
                figures |= throughput(stub, path, n_streams, n_predict)
        if "one" in parts:
            figures |= throughput(stub, "/completion", 1, 2 * n_predict)
        if "short" in parts and variant.kind == "app":
            figures |= short_answers(stub, n_streams, 50)
    if variant.kind != "app":
        return figures
    if "burst" in parts:
        with serving(variant, model, "--seconds", str(ALL_AT_ONCE)) as stub:
            burst = throughput(stub, "/completion", n_streams, n_predict)
            figures |= {f"all at once: {name}": value for name, value in burst.items()}
    if "latency" in parts:
        figures |= latency(variant, model, n_streams) | latency(variant, model, 1)
    if "long" in parts:
        figures |= long_prompt(variant, model, PATHS[0]) | long_prompt(variant, model, PATHS[2])
    if "memory" in parts:
        figures |= idle_memory(variant, model)
    return figures


def table(runs: dict[str, list[Figures]]) -> str:
    names = list(runs)
    keys = list(dict.fromkeys(key for figures in runs.values() for run in figures for key in run))
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for key in keys:
        cells = []
        for name in names:
            values = [run[key] for run in runs[name] if key in run]
            cells.append(_shown(values))
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(values: list[float]) -> str:
    if not values:
        return ""
    digits = 0 if max(values) >= 100 else 2
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    here = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file; only its tokenizer is used")
    parser.add_argument("--tree", action="append", default=[], help="NAME=FOLDER: another checkout")
    parser.add_argument("--no-bare", action="store_true", help="without the yardsticks")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--n-predict", type=int, default=2000)
    parser.add_argument("--out", type=Path, help="write every figure here as JSON")
    args = parser.parse_args()

    variants = [Variant("this tree", "app", here)]
    for name, _, folder in (given.partition("=") for given in args.tree):
        variants.append(Variant(name, "app", Path(folder).resolve()))
    if not args.no_bare:
        variants += [Variant(f"bare {kind}", kind, here) for kind in ("sse-starlette", "uvicorn")]
    runs: dict[str, list[Figures]] = {variant.name: [] for variant in variants}
    model = args.model.resolve()
    for number in range(args.runs):
        print(f"run {number + 1} of {args.runs}", file=sys.stderr, flush=True)
        for variant in variants:
            runs[variant.name].append(measure(variant, model, args.parts, args.streams, args.n_predict))
    print(table(runs))
    if args.out:
        args.out.write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
