"""`make bench-serve`: compare the listeners of `headrace serve` with minimal servers, as ratios.

    python benchmarks/serving [SECTION...] [--pairs 5] [--seconds 2]

`first_item.py` measures the delay of stream items, and `soak.py` the memory over half a million
requests.

Sections: rest, binary, grpc, grpcbig, sse, gstream, batch, lone. The default is all. The benchmark
needs wrk and h2load (Debian's wrk and nghttp2-client): clients in C, so that the server is the
bottleneck. Each pair runs both sides in turns. CPU is of the server alone, and varies less than the
rate. Figures go to `bench-results/serving.json`. The exit status is 1 if a target is missed.
"""

import argparse
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from process import Server, free_port
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RESULTS = Path("bench-results/serving.json")
console = Console(width=None if sys.stdout.isatty() else 120)


@dataclass(frozen=True)
class Case:
    """One comparison: the requests for both sides, and headrace's target."""

    section: str
    what: str
    bare: str
    """The kind of the minimal server."""
    path: str
    connections: int
    items: int
    """Items of one response: events of a stream, or 1."""
    target: float
    model: str
    streams: int = 1


CASES = [
    Case("rest", "REST, 1x16 FP32 JSON", "rest", "/v2/models/echo/infer", 32, 1, 0.60, "Echo"),
    Case("binary", "REST, 256x30 binary tensors", "binary", "/v2/models/wide/infer", 32, 1, 0.70, "Wide"),
    Case("grpc", "gRPC, 1x16 FP32 raw", "grpc", "grpc:Echo", 32, 1, 0.85, "Echo"),
    Case("grpcbig", "gRPC, 256x30 FP32 raw", "grpc", "grpc:Wide", 32, 1, 0.85, "Wide"),
    Case("sse", "SSE, 100 events per request", "sse", "/v2/models/words/infer_stream", 1, 100, 0.70, "Words"),
    Case("sse", "SSE, 32 streams", "sse", "/v2/models/words/infer_stream", 32, 100, 0.70, "Words"),
    Case(
        "gstream", "gRPC stream, 100 messages per request", "gstream", "stream:Words", 1, 100, 0.70, "Words"
    ),
    Case("gstream", "gRPC, 32 streams", "gstream", "stream:Words", 32, 100, 0.70, "Words"),
    Case(
        "batch",
        "5 ms model, batches of 32, 128 clients",
        "batch",
        "/v2/models/slow/infer",
        128,
        1,
        0.95,
        "Slow",
    ),
    Case(
        "batch",
        "5 ms model, batches of 32, 32 clients",
        "batch",
        "/v2/models/slow/infer",
        32,
        1,
        0.95,
        "Slow",
    ),
    Case("lone", "5 ms model, 1 client", "batch", "/v2/models/slow/infer", 1, 1, 0.95, "Slow"),
]


def json_body(rows: int, columns: int) -> bytes:
    values = np.random.default_rng(1).random(rows * columns).round(4).tolist()
    return json.dumps(
        {"inputs": [{"name": "x", "shape": [rows, columns], "datatype": "FP32", "data": values}]}
    ).encode()


def binary_body(rows: int, columns: int) -> tuple[bytes, int]:
    raw = np.random.default_rng(1).random((rows, columns), np.float32).tobytes()
    tensor = {
        "name": "x",
        "shape": [rows, columns],
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(raw)},
    }
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return text + raw, len(text)


def grpc_body(model: str) -> bytes:
    from headrace.protocols import protobuf

    request = protobuf.message_class("ModelInferRequest")(model_name=model.lower())
    shape = {"Echo": (1, 16), "Wide": (256, 30), "Words": (1,)}[model]
    if model == "Words":
        tensor = request.inputs.add(name="text", datatype="BYTES", shape=shape)
        tensor.contents.bytes_contents.append(b"go")
    else:
        request.inputs.add(name="x", datatype="FP32", shape=shape)
        request.raw_input_contents.append(np.random.default_rng(1).random(shape, np.float32).tobytes())
    message = request.SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


def run_wrk(url: str, connections: int, seconds: float, body: bytes, headers: dict[str, str]) -> float:
    with tempfile.NamedTemporaryFile("wb", suffix=".body") as file:
        file.write(body)
        file.flush()
        lines = [f'wrk.headers["{k}"]="{v}"' for k, v in headers.items()]
        script = (
            f'local f=io.open("{file.name}","rb") wrk.body=f:read("*a") f:close() wrk.method="POST"\n'
            + "\n".join(lines)
        )
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
            lua.write(script)
            lua.flush()
            command = ["wrk", "-t1", f"-c{connections}", f"-d{max(round(seconds), 1)}s", "-s", lua.name, url]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in out:
        raise RuntimeError(f"{url} returned errors: {out}")
    return float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1])


def run_h2load(url: str, clients: int, seconds: float, body: bytes) -> float:
    with tempfile.NamedTemporaryFile("wb") as file:
        file.write(body)
        file.flush()
        command = ["h2load", "-t1", f"-c{clients}", "-m1", f"-D{max(round(seconds), 1)}", "-d", file.name]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers", url]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"finished in [\d.]+m?s, ([\d.]+) req/s", out)[1])


def load(case: Case, port: int, seconds: float) -> float:
    """Return requests per second."""
    kind, _, model = case.path.partition(":")
    if kind == "grpc":
        url = f"http://127.0.0.1:{port}/inference.GRPCInferenceService/ModelInfer"
        return run_h2load(url, case.connections, seconds, grpc_body(model))
    if kind == "stream":
        url = f"http://127.0.0.1:{port}/inference.GRPCInferenceService/ModelStreamInfer"
        return run_h2load(url, case.connections, seconds, grpc_body(model))
    url = f"http://127.0.0.1:{port}{case.path}"
    if case.section == "binary":
        body, length = binary_body(256, 30)
        headers = {"Inference-Header-Content-Length": str(length), "Content-Type": "application/octet-stream"}
        return run_wrk(url, case.connections, seconds, body, headers)
    return run_wrk(url, case.connections, seconds, json_body(1, 16), {"Content-Type": "application/json"})


def measured(case: Case, server: Server, seconds: float) -> tuple[float, float]:
    """Return items per second, and the server's CPU time for each in microseconds."""
    load(case, server.port, 1)
    before, began = server.cpu_s(), time.monotonic()
    rate = load(case, server.port, seconds)
    took = time.monotonic() - began
    return rate * case.items, (server.cpu_s() - before) / (rate * took) * 1e6 / case.items


def headrace_server(case: Case) -> Server:
    grpc = case.path.startswith(("grpc:", "stream:"))
    port = free_port()
    rest_port, grpc_port = (free_port(), port) if grpc else (port, free_port())
    name = case.model.lower()
    command = [sys.executable, "-m", "headrace", "serve", f"{name}={HERE / 'models.py'}:{case.model}"]
    command += ["--rest-port", str(rest_port), "--grpc-port", str(grpc_port), "--metrics-port", "0"]
    server = Server(command, port)
    with urllib.request.urlopen(f"http://127.0.0.1:{rest_port}/v2/health/ready", timeout=30):
        return server


def compare(case: Case, pairs: int, seconds: float) -> dict:
    port = free_port()
    bare = Server([sys.executable, str(HERE / "bare.py"), case.bare, str(port)], port)
    ours = headrace_server(case)
    try:
        both = [(measured(case, bare, seconds), measured(case, ours, seconds)) for _ in range(pairs)]
    finally:
        bare.stop()
        ours.stop()
    ratios = [o[0] / b[0] for b, o in both]
    return {
        **asdict(case),
        "bare_per_s": median(b[0] for b, _ in both),
        "headrace_per_s": median(o[0] for _, o in both),
        "ratio": median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "bare_cpu_us": median(b[1] for b, _ in both),
        "headrace_cpu_us": median(o[1] for _, o in both),
        "cpu_ratio": median(b[1] / o[1] for b, o in both),
        "met": median(ratios) >= case.target,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    missing = [tool for tool in ("wrk", "h2load") if shutil.which(tool) is None]
    if missing:
        console.print(f"{' and '.join(missing)} missing: install Debian's wrk and nghttp2-client")
        return 2
    cases = [c for c in CASES if not arguments.sections or c.section in arguments.sections]
    results = []
    for case in cases:
        console.print(f"[dim]{case.what} ...[/dim]")
        results.append(compare(case, arguments.pairs, arguments.seconds))
    show(results)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1))
    return 0 if all(r["met"] for r in results) else 1


def show(results: list[dict]) -> None:
    table = Table(
        "figure", "bare /s", "headrace /s", "ratio (spread)", "target", "bare CPU us", "CPU us", "CPU ratio"
    )
    for r in results:
        spread = f"{r['ratio']:.2f} ({r['ratio_low']:.2f}-{r['ratio_high']:.2f})"
        colour = "green" if r["met"] else "red"
        table.add_row(
            r["what"], f"{r['bare_per_s']:,.0f}", f"{r['headrace_per_s']:,.0f}", f"[{colour}]{spread}[/]",
            f">= {r['target']:.2f}", f"{r['bare_cpu_us']:.1f}", f"{r['headrace_cpu_us']:.1f}",
            f"{r['cpu_ratio']:.2f}",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
