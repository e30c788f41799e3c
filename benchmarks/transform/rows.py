"""Section rows: a million rows through an MLP, each line beside its score, by headrace, by hand and by peers."""

import argparse
import filecmp
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import median

import ours
from competitors import LIMIT_OUT, PEER_OUT, PEERS, Peer, check_scores, interpreters, limit_run, peer_run
from inputs import console, made
from promise import Promise, spread
from rich.table import Table

LIMIT, OURS = "limit.py", "headrace"
LIMIT_PINNED, OURS_PINNED = "limit.py on one core", "headrace on one core"


def section(asked: argparse.Namespace) -> tuple[list[Promise], dict]:
    """A million rows, by headrace, by hand and by peers, in turns; the bytes must be the limit's, the peers' numbers too."""
    source = made(f"rows-{asked.rows}.csv", asked.rows)
    several = f"{OURS}, {asked.workers} workers"
    core = max(os.sched_getaffinity(0))
    pythons = interpreters(asked.peer)
    racing = [peer for peer in PEERS if peer.name in pythons]
    for peer in PEERS:
        if peer not in racing:
            console.print(f"[dim]{peer.name}: skipped, not installed (make peers)[/]")
    runs: dict[str, list[ours.Run]] = {}
    for turn in range(asked.pairs):
        add(runs, LIMIT, limit_run(source, asked.rows))
        add(runs, OURS, our_run(asked, source))
        add(runs, several, our_run(asked, source, workers=asked.workers))
        add(runs, LIMIT_PINNED, limit_run(source, asked.rows, core))
        add(runs, OURS_PINNED, our_run(asked, source, core=core))
        for peer in [peer for peer in racing if turn == 0 or not peer.slow]:
            try:
                add(runs, peer.name, checked_peer(peer, pythons[peer.name], asked))
            except ours.BrokenRunError as error:
                console.print(f"[bold red]{peer.name}: left out, {error}[/]")
                racing.remove(peer)
    console.print(shown(runs))
    raced = [peer for peer in racing if peer.name in runs]
    promises = [*against_limit(runs, several), *chain(*(against(peer, runs, several) for peer in raced))]
    return promises, {name: [figures(run) for run in found] for name, found in runs.items()}


def our_run(asked: argparse.Namespace, source: Path, workers: int = 1, core: int | None = None) -> ours.Run:
    """One of headrace, whose output must be byte for byte what the limit has just written."""
    run = ours.run(asked.verb, source, asked.rows, workers=workers, core=core)
    if not same_bytes(list(ours.outputs(asked.verb)), LIMIT_OUT):
        raise ours.BrokenRunError("headrace wrote other bytes than limit.py")
    return run


def same_bytes(pieces: Sequence[Path], whole: Path) -> bool:
    if len(pieces) == 1:
        return filecmp.cmp(pieces[0], whole, shallow=False)
    return b"".join(piece.read_bytes() for piece in pieces) == whole.read_bytes()


def checked_peer(peer: Peer, python: Path, asked: argparse.Namespace) -> ours.Run:
    """One run of a peer, on fewer rows if it is slow; its numbers must be the limit's."""
    rows = asked.rows
    if peer.slow:
        rows = min(rows, asked.peer_rows or peer.rows_max or rows)
    source = made(f"rows-{rows}.csv", rows)
    run = peer_run(peer, python, source, rows)
    limit_run(source, rows)
    check_scores(PEER_OUT, LIMIT_OUT)
    return run


def add(runs: dict[str, list[ours.Run]], name: str, run: ours.Run) -> None:
    runs.setdefault(name, []).append(run)
    console.print(f"[dim]{name}: {run.rows_per_s / 1e3:,.0f} k rows/s[/]")


def against_limit(runs: dict[str, list[ours.Run]], several: str) -> Iterator[Promise]:
    yield compared(runs, "rows/s against the limit, both on one core", OURS_PINNED, LIMIT_PINNED, 0.80)
    yield compared(runs, "rows a CPU second, whole processes, one worker", OURS, LIMIT, None, of_cpu=True)
    yield compared(runs, "rows/s as it comes, one worker", OURS, LIMIT, None)
    yield compared(runs, f"rows/s as it comes, {several.removeprefix(OURS + ', ')}", several, LIMIT, None)


def against(peer: Peer, runs: dict[str, list[ours.Run]], several: str) -> Iterator[Promise]:
    """Peers take every core there is; so may headrace, and it need not."""
    yield compared(runs, f"rows/s against {peer.does}", several, peer.name, 1)
    yield compared(runs, "the same, headrace with one worker", OURS, peer.name, None)


def compared(
    runs: dict[str, list[ours.Run]],
    what: str,
    one: str,
    other: str,
    bound: float | None,
    *,
    of_cpu: bool = False,
) -> Promise:
    """One competitor against another, run by run of the same round."""
    pairs = [(rate(a, of_cpu), rate(b, of_cpu)) for a, b in zip(runs[one], runs[other], strict=False)]
    ratios = [a / b for a, b in pairs]
    ours_k, theirs_k = (median(values) / 1e3 for values in zip(*pairs, strict=True))
    measured = f"{ours_k:,.0f} k against {theirs_k:,.0f} k"
    return Promise("rows", what, measured, median(ratios), bound, True, spread(ratios))


def rate(run: ours.Run, of_cpu: bool) -> float:
    """Rows a second, or a second of CPU. The latter by the same instrument for all, which no worker process escapes."""
    return 1e6 / run.whole_cpu_us_per_row if of_cpu else run.rows_per_s


def figures(run: ours.Run) -> dict[str, float]:
    return {
        "rows": run.rows,
        "rows_per_s": round(run.rows_per_s),
        "cpu_us_per_row": round(run.cpu_us_per_row, 3),
        "whole_rows_per_s": round(run.whole_rows_per_s),
        "whole_cpu_us_per_row": round(run.whole_cpu_us_per_row, 3),
        "whole_s": round(run.whole.wall_s, 3),
        "peak_mb": round(run.whole.peak_mb, 1),
    }


def shown(runs: dict[str, list[ours.Run]]) -> Table:
    """Medians. The job alone is as each one clocks itself; the whole process is clocked from outside."""
    table = Table(
        "who", "rows", "rows/s of the job", "of all runs", "CPU µs a row", "rows/s, whole process", "CPU µs a row, whole", "peak MB"
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
