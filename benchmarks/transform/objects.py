"""Section objects: many small objects, each with an output of its own, against one call and one request an object."""

import argparse
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import ours
from inputs import FOLDER, MODEL, console, made, python
from process import Server, free_port
from promise import Promise, spread

OBJECT_ROWS = 10
SLOW_MODEL = Path(__file__).parent.parent / "slow_model.py"
IN_MEMORY = Path("/dev/shm")
VENDORS_IN_FLIGHT = 1
"""Batch Transform's default: one request at a time to a container."""
IN_FLIGHT = 8
"""As many as a user would ask for."""
Figures = dict[str, list[dict]]


def section(asked: argparse.Namespace) -> tuple[list[Promise], dict]:
    """Ten thousand objects of ten rows, against a loop with one call an object and against one request an object."""
    rows = asked.objects * OBJECT_ROWS
    kept = made(f"objects-{asked.objects}", rows, "--object-rows", str(OBJECT_ROWS))
    several = f"headrace, {asked.workers} workers"
    figures: Figures = {}
    # In memory, since what creating a file costs on this disk is no part of the question.
    with served() as (url, server), tempfile.TemporaryDirectory(dir=place(asked)) as there:
        at = Path(there)
        source = Path(shutil.copytree(kept, at / "objects"))
        for _ in range(asked.pairs):
            found = {
                "copy": by_loop(source, at / "copy", "--copy"),
                "loop": by_loop(source, at / "loop"),
                "lone requests": by_requests(source, at / "lone", url, server, VENDORS_IN_FLIGHT),
                "requests": by_requests(source, at / "requests", url, server, IN_FLIGHT),
                "slow loop": by_loop(source, at / "slow-loop", "--slow"),
                "slow headrace": by_headrace(asked, source, at / "slow", 1, model=f"{SLOW_MODEL}:Slow"),
                "headrace": by_headrace(asked, source, at / "headrace", 1),
                several: by_headrace(asked, source, at / "several", asked.workers),
            }
            for name, one in found.items():
                figures.setdefault(name, []).append(one)
            names = sorted(path.name for path in source.iterdir())
            check(names, at / "loop", [at / "lone", at / "requests"], "transform")
            check(names, at / "loop", [at / "headrace", at / "several"], asked.verb)
    for name, found in figures.items():
        console.print(f"[dim]{name}: {per_s(found):,.0f} objects/s, {cpu_us(found):,.0f} µs of CPU each[/]")
    return list(promises(figures, several)), figures


def place(asked: argparse.Namespace) -> Path:
    """Where the objects are while this measures."""
    if asked.objects_at:
        return asked.objects_at
    return IN_MEMORY if IN_MEMORY.is_dir() else FOLDER


def promises(figures: Figures, several: str) -> Iterator[Promise]:
    lone = f"{VENDORS_IN_FLIGHT} in flight as the vendor's default is"
    slow = "objects/s, a model of 5 ms a call, against one call an object"
    yield compared(figures, "slow headrace", "slow loop", slow, 10)
    # Of a model that costs next to nothing, files are all that is measured.
    for name, what in (
        ("requests", f"one HTTP request an object, {IN_FLIGHT} in flight"),
        ("lone requests", f"one HTTP request an object, {lone}"),
        ("loop", "one call an object, no HTTP"),
        ("copy", "copying each object, no model"),
    ):
        yield compared(figures, "headrace", name, f"objects/s, a tiny model, against {what}", None)
    yield compared(figures, several, "headrace", f"{several}, against one", None)


def compared(figures: Figures, one: str, other: str, what: str, bound: float | None) -> Promise:
    pairs = zip(figures[one], figures[other], strict=True)
    ratios = [a["rows_per_s"] / b["rows_per_s"] for a, b in pairs]
    measured = f"{per_s(figures[one]):,.0f} against {per_s(figures[other]):,.0f}"
    return Promise("objects", what, measured, median(ratios), bound, True, spread(ratios))


def per_s(found: Sequence[Mapping]) -> float:
    return median(one["rows_per_s"] for one in found) / OBJECT_ROWS


def cpu_us(found: Sequence[Mapping]) -> float:
    return median(one["cpu_us_per_row"] for one in found) * OBJECT_ROWS


def by_loop(source: Path, out: Path, *options: str) -> dict:
    return python("transform/object_loop.py", source, MODEL, emptied(out), *options)


def by_requests(source: Path, out: Path, url: str, server: Server, in_flight: int) -> dict:
    """The client's figures, with the server's CPU added."""
    before_s = server.cpu_s()
    found = python("transform/object_requests.py", source, url, emptied(out), "--in-flight", in_flight)
    served_us = (server.cpu_s() - before_s) / found["rows"] * 1e6
    return {**found, "cpu_us_per_row": found["cpu_us_per_row"] + served_us}


def by_headrace(
    asked: argparse.Namespace, source: Path, out: Path, workers: int, *, model: str | Path = MODEL
) -> dict:
    rows = asked.objects * OBJECT_ROWS
    run = ours.run(asked.verb, source, rows, workers=workers, destination=out, model=model)
    return {
        "rows_per_s": run.rows_per_s,
        "cpu_us_per_row": run.cpu_us_per_row,
        "whole_rows_per_s": run.whole_rows_per_s,
        "peak_mb": run.whole.peak_mb,
    }


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


def check(names: Sequence[str], loop: Path, others: Sequence[Path], verb: ours.Verb) -> None:
    """Raise BrokenRunError unless the same was written: a file an object, lines untouched, scores close."""
    expected = b"".join((loop / f"{name}.out").read_bytes() for name in names)
    for other in others:
        written = list(ours.outputs(verb, other))
        if verb == "transform" and [path.name for path in written] != [f"{name}.out" for name in names]:
            raise ours.BrokenRunError(f"{len(written)} outputs came of {len(names)} objects")
        if not same_scores(b"".join(path.read_bytes() for path in written), expected):
            raise ours.BrokenRunError(f"{other.name} wrote other lines or scores than the loop")


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
