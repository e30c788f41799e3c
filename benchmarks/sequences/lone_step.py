"""Section lone: the steps of one sequence over REST, and the same model without a state."""

import argparse
import http.client
import json
import sys
import time
from pathlib import Path
from statistics import median

from competition import BrokenRunError
from process import Server, free_port
from targets import Target, spread

EXTRA_MS_MAX = 1.0
REQUESTS = 400
HERE = Path(__file__).parent


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """p50 of a lone request in milliseconds: a step, minus a call of the same model without a state"""
    figures: dict[str, list[float]] = {"step": [], "plain": []}
    port = free_port()
    models = [f"{HERE / 'sequence_models.py'}:{name}" for name in ("Counting", "Plain")]
    named = [f"{name}={model}" for name, model in zip(("counting", "plain"), models, strict=True)]
    server = Server(
        [
            sys.executable,
            "-m",
            "headrace",
            "serve",
            *named,
            "--rest-port",
            str(port),
            "--no-grpc",
            "--no-metrics",
        ],
        port,
    )
    try:
        for _ in range(arguments.pairs):
            figures["plain"].append(request_ms(port, "plain", {}))
            figures["step"].append(request_ms(port, "counting", {"sequence_id": "lone"}))
    finally:
        server.stop()
    more = [a - b for a, b in zip(figures["step"], figures["plain"], strict=True)]
    measured = f"{median(figures['step']):.2f} against {median(figures['plain']):.2f} ms"
    what = "p50 of a lone step over REST, minus that of a model without a state: ms"
    return [Target("lone", what, measured, median(more), EXTRA_MS_MAX, False, spread(more))], figures


def request_ms(port: int, model: str, parameters: dict) -> float:
    tensor = {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1.0] * 8}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    took_s: list[float] = []
    for step in range(REQUESTS):
        sent = {**parameters, "sequence_start": True} if parameters and not step else parameters
        body = json.dumps({"inputs": [tensor], "parameters": sent})
        began_s = time.perf_counter()
        connection.request("POST", f"/v2/models/{model}/infer", body, {"Content-Type": "application/json"})
        response = json.loads(connection.getresponse().read())
        took_s.append(time.perf_counter() - began_s)
        expected = step + 1 if parameters else 2
        if "outputs" not in response or response["outputs"][0]["data"][0] != expected:
            raise BrokenRunError(f"step {step} of {model}: {response}")
    connection.close()
    return median(took_s) * 1000
