"""Section objects: many small objects, each with an output of its own, against one call and one request an object."""

import argparse
import shutil
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import ours
from inputs import FOLDER, MODEL, console, made, python
from process import Server, free_port
from promise import Promise, spread

OBJECT_ROWS = 10
BY_LOOP, BY_REQUESTS = FOLDER / "objects-by-loop", FOLDER / "objects-by-requests"


def section(asked: argparse.Namespace) -> tuple[list[Promise], dict]:
    """Ten thousand objects of ten rows, against a loop with one call an object and against one request an object."""
    rows = asked.objects * OBJECT_ROWS
    source = made(f"objects-{asked.objects}", rows, "--object-rows", str(OBJECT_ROWS))
    figures: dict[str, list[dict]] = {"headrace": [], "loop": [], "requests": []}
    with served() as (url, server):
        for _ in range(asked.pairs):
            figures["loop"].append(by_loop(source))
            figures["requests"].append(by_requests(source, url, server))
            run = ours.run(asked.verb, source, rows)
            figures["headrace"].append(
                {"rows_per_s": run.rows_per_s, "cpu_us_per_row": run.cpu_us_per_row, "peak_mb": run.whole.peak_mb}
            )  # fmt: skip
            check(asked, source)
    for name, found in figures.items():
        console.print(
            f"[dim]{name}: {per_s(found):,.0f} objects/s, {cpu_us(found):,.0f} µs of CPU each, client and server[/]"
        )
    return list(promises(figures)), figures


def promises(figures: dict[str, list[dict]]) -> Iterator[Promise]:
    for name, what, bound in (
        ("requests", "objects/s against one HTTP request an object, 8 in flight", 10),
        ("loop", "objects/s against one call an object, no HTTP", None),
    ):
        pairs = zip(figures["headrace"], figures[name], strict=True)
        ratios = [a["rows_per_s"] / b["rows_per_s"] for a, b in pairs]
        measured = f"{per_s(figures['headrace']):,.0f} against {per_s(figures[name]):,.0f}"
        yield Promise("objects", what, measured, median(ratios), bound, True, spread(ratios))


def per_s(found: Sequence[dict]) -> float:
    return median(one["rows_per_s"] for one in found) / OBJECT_ROWS


def cpu_us(found: Sequence[dict]) -> float:
    return median(one["cpu_us_per_row"] for one in found) * OBJECT_ROWS


def by_loop(source: Path) -> dict:
    return python("transform/object_loop.py", source, MODEL, emptied(BY_LOOP))


def by_requests(source: Path, url: str, server: Server) -> dict:
    """The client's figures, with the server's CPU added."""
    before_s = server.cpu_s()
    found = python("transform/object_requests.py", source, url, emptied(BY_REQUESTS))
    served_us = (server.cpu_s() - before_s) / found["rows"] * 1e6
    return {**found, "cpu_us_per_row": found["cpu_us_per_row"] + served_us}


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@contextmanager
def served() -> Iterator[tuple[str, Server]]:
    """The model behind `headrace serve`; its infer URL, and its process."""
    port = free_port()
    command = [sys.executable, "-m", "headrace", "serve", f"mlp={MODEL}"]
    server = Server([*command, "--rest-port", str(port), "--no-grpc", "--no-metrics"], port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=30):
            yield f"http://127.0.0.1:{port}/v2/models/mlp/infer", server
    finally:
        server.stop()


def check(asked: argparse.Namespace, source: Path) -> None:
    """All three must have written the same: an output for each object, its lines untouched, its scores close."""
    names = sorted(path.name for path in source.iterdir())
    expected = [(BY_LOOP / f"{name}.out").read_bytes() for name in names]
    requested = [(BY_REQUESTS / f"{name}.out").read_bytes() for name in names]
    written = list(ours.outputs(asked.verb))
    if asked.verb == "transform" and [path.name for path in written] != [f"{name}.out" for name in names]:
        raise ours.BrokenRunError(f"{len(written)} outputs came of {len(names)} objects")
    texts = [path.read_bytes() for path in written]
    for found in (requested, texts):
        if not same_scores(b"".join(found), b"".join(expected)):
            raise ours.BrokenRunError("other lines or scores came out than by the loop")


def same_scores(one: bytes, other: bytes) -> bool:
    """Whether two outputs have the same lines, and scores that differ by no more than batching makes them."""
    pairs = [text.splitlines() for text in (one, other)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    for a, b in zip(*pairs, strict=True):
        (line_a, _, score_a), (line_b, _, score_b) = a.rpartition(b","), b.rpartition(b",")
        if line_a != line_b or abs(float(score_a) - float(score_b)) > 1e-5:
            return False
    return True
