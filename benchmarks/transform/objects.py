"""Section objects: many small objects, each with an output, and one call or request for each
object.
"""

import argparse
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import headrace_runs
from inputs import FOLDER, MODEL, console, make_input, run_script
from process import Server, free_port
from targets import Target, spread

OBJECT_ROWS = 10
SLOW_MODEL = Path(__file__).parent.parent / "slow_model.py"
IN_MEMORY = Path("/dev/shm")
SAGEMAKER_IN_FLIGHT = 1
"""SageMaker's default: one request at a time to a container."""
IN_FLIGHT = 8
"""A usual choice of users."""
Figures = dict[str, list[dict]]


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Objects/s for 10,000 objects of ten rows, relative to one call and one request for each"""
    rows = arguments.objects * OBJECT_ROWS
    kept = make_input(f"objects-{arguments.objects}", rows, "--object-rows", str(OBJECT_ROWS))
    several = f"headrace, {arguments.workers} workers"
    figures: Figures = {}
    # In memory, because the cost of creating files on this disk is not measured here.
    with served_model() as (url, server), tempfile.TemporaryDirectory(dir=objects_folder(arguments)) as there:
        at = Path(there)
        source = Path(shutil.copytree(kept, at / "objects"))
        for _ in range(arguments.pairs):
            found = {
                "copy": by_loop(source, at / "copy", "--copy"),
                "loop": by_loop(source, at / "loop"),
                "lone requests": by_requests(source, at / "lone", url, server, SAGEMAKER_IN_FLIGHT),
                "requests": by_requests(source, at / "requests", url, server, IN_FLIGHT),
                "slow loop": by_loop(source, at / "slow-loop", "--slow"),
                "slow headrace": by_headrace(arguments, source, at / "slow", 1, model=f"{SLOW_MODEL}:Slow"),
                "headrace": by_headrace(arguments, source, at / "headrace", 1),
                several: by_headrace(arguments, source, at / "several", arguments.workers),
            }
            for name, one in found.items():
                figures.setdefault(name, []).append(one)
            names = sorted(path.name for path in source.iterdir())
            check(names, at / "loop", [at / "lone", at / "requests"], "transform")
            check(names, at / "loop", [at / "headrace", at / "several"], arguments.verb)
    for name, found in figures.items():
        console.print(f"[dim]{name}: {per_s(found):,.0f} objects/s, {cpu_us(found):,.0f} µs of CPU each[/]")
    return list(targets(figures, several)), figures


def objects_folder(arguments: argparse.Namespace) -> Path:
    """Return the folder of the objects during the measurement."""
    if arguments.objects_at:
        return arguments.objects_at
    return IN_MEMORY if IN_MEMORY.is_dir() else FOLDER


def targets(figures: Figures, several: str) -> Iterator[Target]:
    lone = f"{SAGEMAKER_IN_FLIGHT} in flight as in SageMaker's default"
    slow = "objects/s, a model of 5 ms per call, against one call per object"
    yield compared(figures, "slow headrace", "slow loop", slow, 10)
    # With a model that costs next to nothing, only the files are measured.
    for name, what in (
        ("requests", f"one HTTP request per object, {IN_FLIGHT} in flight"),
        ("lone requests", f"one HTTP request per object, {lone}"),
        ("loop", "one call per object, no HTTP"),
        ("copy", "copying each object, no model"),
    ):
        yield compared(figures, "headrace", name, f"objects/s, a tiny model, against {what}", None)
    yield compared(figures, several, "headrace", f"{several}, against one", None)


def compared(figures: Figures, one: str, other: str, what: str, bound: float | None) -> Target:
    pairs = zip(figures[one], figures[other], strict=True)
    ratios = [a["rows_per_s"] / b["rows_per_s"] for a, b in pairs]
    measured = f"{per_s(figures[one]):,.0f} against {per_s(figures[other]):,.0f}"
    return Target("objects", what, measured, median(ratios), bound, True, spread(ratios))


def per_s(found: Sequence[Mapping]) -> float:
    return median(one["rows_per_s"] for one in found) / OBJECT_ROWS


def cpu_us(found: Sequence[Mapping]) -> float:
    return median(one["cpu_us_per_row"] for one in found) * OBJECT_ROWS


def by_loop(source: Path, out: Path, *options: str) -> dict:
    return run_script("transform/object_loop.py", source, MODEL, empty_folder(out), *options)


def by_requests(source: Path, out: Path, url: str, server: Server, in_flight: int) -> dict:
    """Return the client's figures, with the server's CPU added."""
    before_s = server.cpu_s()
    found = run_script(
        "transform/object_requests.py", source, url, empty_folder(out), "--in-flight", in_flight
    )
    served_us = (server.cpu_s() - before_s) / found["rows"] * 1e6
    return {**found, "cpu_us_per_row": found["cpu_us_per_row"] + served_us}


def by_headrace(
    arguments: argparse.Namespace, source: Path, out: Path, workers: int, *, model: str | Path = MODEL
) -> dict:
    rows = arguments.objects * OBJECT_ROWS
    run = headrace_runs.run(arguments.verb, source, rows, workers=workers, destination=out, model=model)
    return {
        "rows_per_s": run.rows_per_s,
        "cpu_us_per_row": run.cpu_us_per_row,
        "whole_rows_per_s": run.whole_rows_per_s,
        "peak_mb": run.whole.peak_mb,
    }


def empty_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@contextmanager
def served_model() -> Iterator[tuple[str, Server]]:
    """Serve the model with `headrace serve`. Yield its infer URL and its process."""
    port = free_port()
    command = [sys.executable, "-m", "headrace", "serve", f"mlp={MODEL}"]
    server = Server([*command, "--rest-port", str(port), "--no-grpc", "--no-metrics"], port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=30):
            yield f"http://127.0.0.1:{port}/v2/models/mlp/infer", server
    finally:
        server.stop()


def check(names: Sequence[str], loop: Path, others: Sequence[Path], verb: headrace_runs.Verb) -> None:
    """Raise BrokenRunError unless the outputs agree: a file for each object, equal lines, close
    scores.
    """
    expected = b"".join((loop / f"{name}.out").read_bytes() for name in names)
    for other in others:
        written = list(headrace_runs.outputs(verb, other))
        if verb == "transform" and [path.name for path in written] != [f"{name}.out" for name in names]:
            raise headrace_runs.BrokenRunError(f"{len(written)} outputs for {len(names)} objects")
        if not same_scores(b"".join(path.read_bytes() for path in written), expected):
            raise headrace_runs.BrokenRunError(
                f"the lines or scores of {other.name} differ from those of the loop"
            )


def same_scores(one: bytes, other: bytes) -> bool:
    """Return True if the lines are equal and the scores differ by no more than batching explains."""
    pairs = [text.splitlines() for text in (one, other)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    for a, b in zip(*pairs, strict=True):
        (line_a, _, score_a), (line_b, _, score_b) = a.rpartition(b","), b.rpartition(b",")
        if line_a != line_b or abs(float(score_a) - float(score_b)) > 1e-5:
            return False
    return True
