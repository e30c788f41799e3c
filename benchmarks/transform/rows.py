"""Section rows: a million rows through an MLP, each line with its score, by headrace, limit and
peers.
"""

import argparse
import filecmp
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import median

import headrace_runs
from competitors import LIMIT_OUT, PEER_OUT, PEERS, Peer, check_scores, interpreters, limit_run, peer_run
from inputs import console, make_input
from rich.table import Table
from targets import Target, spread

LIMIT, OURS = "limit.py", "headrace"
LIMIT_PINNED, OURS_PINNED = "limit.py on one core", "headrace on one core"


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """A million rows in turns; headrace must write the limit's bytes, peers its numbers"""
    source = make_input(f"rows-{arguments.rows}.csv", arguments.rows)
    several = f"{OURS}, {arguments.workers} workers"
    core = max(os.sched_getaffinity(0))
    pythons = interpreters(arguments.peer)
    racing = [peer for peer in PEERS if peer.name in pythons]
    for peer in PEERS:
        if peer not in racing:
            console.print(f"[dim]{peer.name}: skipped, not installed (make peers)[/]")
    runs: dict[str, list[headrace_runs.Run]] = {}
    for turn in range(arguments.pairs):
        add(runs, LIMIT, limit_run(source, arguments.rows))
        add(runs, OURS, our_run(arguments, source))
        add(runs, several, our_run(arguments, source, workers=arguments.workers))
        add(runs, LIMIT_PINNED, limit_run(source, arguments.rows, core))
        add(runs, OURS_PINNED, our_run(arguments, source, core=core))
        for peer in [peer for peer in racing if turn == 0 or not peer.slow]:
            try:
                add(runs, peer.name, checked_peer(peer, pythons[peer.name], arguments))
            except headrace_runs.BrokenRunError as error:
                console.print(f"[bold red]{peer.name}: left out, {error}[/]")
                racing.remove(peer)
    console.print(shown(runs))
    raced = [peer for peer in racing if peer.name in runs]
    targets = [*against_limit(runs, several), *chain(*(against(peer, runs, several) for peer in raced))]
    return targets, {name: [figures(run) for run in found] for name, found in runs.items()}


def our_run(
    arguments: argparse.Namespace, source: Path, workers: int = 1, core: int | None = None
) -> headrace_runs.Run:
    """Run headrace once. Its output must be byte-identical to the limit's last output."""
    run = headrace_runs.run(arguments.verb, source, arguments.rows, workers=workers, core=core)
    if not same_bytes(list(headrace_runs.outputs(arguments.verb)), LIMIT_OUT):
        raise headrace_runs.BrokenRunError("headrace and limit.py wrote different bytes")
    return run


def same_bytes(pieces: Sequence[Path], whole: Path) -> bool:
    if len(pieces) == 1:
        return filecmp.cmp(pieces[0], whole, shallow=False)
    return b"".join(piece.read_bytes() for piece in pieces) == whole.read_bytes()


def checked_peer(peer: Peer, python: Path, arguments: argparse.Namespace) -> headrace_runs.Run:
    """Run a peer once, on fewer rows if it is slow. Its numbers must be the limit's."""
    rows = arguments.rows
    if peer.slow:
        rows = min(rows, arguments.peer_rows or peer.rows_max or rows)
    source = make_input(f"rows-{rows}.csv", rows)
    run = peer_run(peer, python, source, rows)
    limit_run(source, rows)
    check_scores(PEER_OUT, LIMIT_OUT)
    return run


def add(runs: dict[str, list[headrace_runs.Run]], name: str, run: headrace_runs.Run) -> None:
    runs.setdefault(name, []).append(run)
    console.print(f"[dim]{name}: {run.rows_per_s / 1e3:,.0f} k rows/s[/]")


def against_limit(runs: dict[str, list[headrace_runs.Run]], several: str) -> Iterator[Target]:
    yield compared(runs, "rows/s against the limit, both on one core", OURS_PINNED, LIMIT_PINNED, 0.80)
    yield compared(runs, "rows per CPU second, whole processes, one worker", OURS, LIMIT, None, of_cpu=True)
    yield compared(runs, "rows/s on all cores, one worker", OURS, LIMIT, None)
    yield compared(runs, f"rows/s on all cores, {several.removeprefix(OURS + ', ')}", several, LIMIT, None)


def against(peer: Peer, runs: dict[str, list[headrace_runs.Run]], several: str) -> Iterator[Target]:
    """Compare a peer with headrace on all cores, since peers use them, and with one worker."""
    yield compared(runs, f"rows/s against {peer.does}", several, peer.name, 1)
    yield compared(runs, "the same, headrace with one worker", OURS, peer.name, None)


def compared(
    runs: dict[str, list[headrace_runs.Run]],
    what: str,
    one: str,
    other: str,
    bound: float | None,
    *,
    of_cpu: bool = False,
) -> Target:
    """Compare two competitors, by the ratios of the runs of each round."""
    pairs = [(rate(a, of_cpu), rate(b, of_cpu)) for a, b in zip(runs[one], runs[other], strict=False)]
    ratios = [a / b for a, b in pairs]
    ours_k, theirs_k = (median(values) / 1e3 for values in zip(*pairs, strict=True))
    measured = f"{ours_k:,.0f} k against {theirs_k:,.0f} k"
    return Target("rows", what, measured, median(ratios), bound, True, spread(ratios))


def rate(run: headrace_runs.Run, of_cpu: bool) -> float:
    """Return rows per second, or per CPU second of the whole process tree."""
    return 1e6 / run.whole_cpu_us_per_row if of_cpu else run.rows_per_s


def figures(run: headrace_runs.Run) -> dict[str, float]:
    return {
        "rows": run.rows,
        "rows_per_s": round(run.rows_per_s),
        "cpu_us_per_row": round(run.cpu_us_per_row, 3),
        "whole_rows_per_s": round(run.whole_rows_per_s),
        "whole_cpu_us_per_row": round(run.whole_cpu_us_per_row, 3),
        "whole_s": round(run.whole.wall_s, 3),
        "peak_mb": round(run.whole.peak_mb, 1),
    }


def shown(runs: dict[str, list[headrace_runs.Run]]) -> Table:
    """Return a table of medians. Each competitor times its own job; the whole process is timed
    outside.
    """
    table = Table(
        "competitor", "rows", "rows/s of the job", "of all runs", "CPU µs per row", "rows/s, whole process",
        "CPU µs per row, whole", "peak MB"
    )  # fmt: skip
    for name, found in runs.items():
        middle = {key: median(figures(run)[key] for run in found) for key in figures(found[0])}
        table.add_row(
            name,
            f"{middle['rows']:,.0f}",
            f"{middle['rows_per_s']:,.0f}",
            f"{spread([run.rows_per_s / 1e3 for run in found])} k",
            f"{middle['cpu_us_per_row']:.2f}",
            f"{middle['whole_rows_per_s']:,.0f}",
            f"{middle['whole_cpu_us_per_row']:.2f}",
            f"{middle['peak_mb']:,.0f}",
        )
    return table
