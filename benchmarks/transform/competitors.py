"""The competitors: the hand-written limit and the installed peers, and one run of each."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import competition
import numpy as np
from headrace_runs import BrokenRunError, Run, last_line, pinned, report_in, run_of
from inputs import FOLDER, MODEL, environment
from inputs import HERE as BENCHMARKS
from process_tree import run_command

PEERS_HERE = Path(__file__).parent / "peers"
ENVIRONMENTS = competition.ENVIRONMENTS
LIMIT_OUT = FOLDER / "limit.csv"
PEER_OUT = FOLDER / "peer"


@dataclass(frozen=True)
class Peer:
    name: str
    does: str
    script: str
    slow: bool = False
    """True for peers that take most of a minute; they run in the first round only."""
    rows_max: int | None = None
    """The row count beyond which the rate does not grow."""


PEERS = (
    Peer("polars", "Polars: scan_csv, map_batches, sink_csv", "polars_scan.py"),
    Peer("daft", "Daft: read_csv, @daft.cls, write_csv", "daft_cls.py"),
    Peer("ray", "Ray Data: read_csv, map_batches(actors), write_csv", "ray_actors.py", slow=True),
    Peer("beam", "Beam DirectRunner: RunInference", "beam_inference.py", slow=True, rows_max=200_000),
)


def interpreters(options: Sequence[str]) -> dict[str, Path]:
    """Return each peer's interpreter, as `competition.interpreters` does."""
    return competition.interpreters([peer.name for peer in PEERS], options, ENVIRONMENTS)


def limit_run(source: Path, rows: int, core: int | None = None) -> Run:
    """Run the limit over an input. Its output is in LIMIT_OUT."""
    command = [sys.executable, str(BENCHMARKS / "limit.py"), str(source), str(MODEL), str(LIMIT_OUT)]
    return _run(pinned(command, core), rows)


def peer_run(peer: Peer, interpreter: Path, source: Path, rows: int) -> Run:
    """Run a peer over an input. Its output is in PEER_OUT."""
    shutil.rmtree(PEER_OUT, ignore_errors=True)
    PEER_OUT.mkdir(parents=True)
    command = [str(interpreter), str(PEERS_HERE / peer.script), str(source), str(MODEL), str(PEER_OUT)]
    # Not resolved: the interpreter of an environment is a link, and its path locates the packages.
    return _run(command, rows)


def _run(command: Sequence[str], rows: int) -> Run:
    # Turns off the peers' usage reports.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "DAFT_ANALYTICS_ENABLED": "0", "DO_NOT_TRACK": "true"}
    watched = run_command(command, {**environment(), **quiet})
    if watched.exit_code:
        raise BrokenRunError(f"exited with status {watched.exit_code}: {last_line(watched.errors)}")
    return run_of(report_in(watched.output, PEER_OUT), rows, watched)


def check_scores(output: Path, limit_output: Path) -> None:
    """Raise BrokenRunError unless the same rows with the same scores were written, in any order.

    Peers format numbers anew (1.26550 becomes 1.2655) and use other batches, so neither the text
    nor the last digit counts.
    """
    written = [file for file in sorted(output.rglob("*")) if file.is_file()]
    theirs, limit = (_by_score(files) for files in (written, [limit_output]))
    if theirs.shape != limit.shape:
        raise BrokenRunError(f"the output has the shape {theirs.shape} instead of {limit.shape}")
    if not np.allclose(theirs, limit, rtol=1e-4, atol=1e-5):
        raise BrokenRunError("the numbers differ from those of the hand-written loop")


def _by_score(files: Sequence[Path]) -> np.ndarray:
    """Return first cell and score of each row, in an order that does not depend on the files'
    order.
    """
    lines = [line.split(b",") for file in files for line in file.read_bytes().splitlines()]
    table = np.array([(cells[0], cells[-1]) for cells in lines], np.float64).reshape(-1, 2)
    # The cell comes first: it survives exactly, the score does not.
    return table[np.lexsort((table[:, 1], table[:, 0]))]
