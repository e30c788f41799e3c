"""Who else does the job: the hand-written limit, and the peers that are installed; one run of each."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import competition
import numpy as np
from inputs import FOLDER, MODEL, environment
from inputs import HERE as BENCHMARKS
from ours import BrokenRunError, Run, last_line, pinned, report_in, run_of
from process_tree import watch

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
    """It takes most of a minute, so it runs in the first round only."""
    rows_max: int | None = None
    """Enough rows where its rate grows no more with them."""


PEERS = (
    Peer("polars", "Polars: scan_csv, map_batches, sink_csv", "polars_scan.py"),
    Peer("daft", "Daft: read_csv, @daft.cls, write_csv", "daft_cls.py"),
    Peer("ray", "Ray Data: read_csv, map_batches(actors), write_csv", "ray_actors.py", slow=True),
    Peer("beam", "Beam DirectRunner: RunInference", "beam_inference.py", slow=True, rows_max=200_000),
)


def interpreters(given: Sequence[str]) -> dict[str, Path]:
    """Where each peer's Python is: as given (NAME=PYTHON), else in `.venv-peers/NAME`. Raises ValueError."""
    return competition.interpreters([peer.name for peer in PEERS], given, ENVIRONMENTS)


def limit_run(source: Path, rows: int, core: int | None = None) -> Run:
    """The limit over an input; what it wrote is in LIMIT_OUT."""
    command = [sys.executable, str(BENCHMARKS / "limit.py"), str(source), str(MODEL), str(LIMIT_OUT)]
    return _run(pinned(command, core), rows)


def peer_run(peer: Peer, interpreter: Path, source: Path, rows: int) -> Run:
    """A peer over an input; what it wrote is in PEER_OUT."""
    shutil.rmtree(PEER_OUT, ignore_errors=True)
    PEER_OUT.mkdir(parents=True)
    command = [str(interpreter), str(PEERS_HERE / peer.script), str(source), str(MODEL), str(PEER_OUT)]
    # Not resolved: an environment's interpreter is a link, and its name says where its packages are.
    return _run(command, rows)


def _run(command: Sequence[str], rows: int) -> Run:
    # No word to anyone about how a peer is used.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "DAFT_ANALYTICS_ENABLED": "0", "DO_NOT_TRACK": "true"}
    watched = watch(command, {**environment(), **quiet})
    if watched.exit_code:
        raise BrokenRunError(f"it ended with {watched.exit_code}: {last_line(watched.errors)}")
    return run_of(report_in(watched.output, PEER_OUT), rows, watched)


def check_scores(output: Path, limit_output: Path) -> None:
    """Raise BrokenRunError unless the same rows with the same scores were written, in any order.

    Peers print numbers anew (1.26550 becomes 1.2655) and batch otherwise, so neither text nor the last digit counts.
    """
    written = [file for file in sorted(output.rglob("*")) if file.is_file()]
    theirs, limit = (_by_score(files) for files in (written, [limit_output]))
    if theirs.shape != limit.shape:
        raise BrokenRunError(f"a table of {theirs.shape} came out instead of {limit.shape}")
    if not np.allclose(theirs, limit, rtol=1e-4, atol=1e-5):
        raise BrokenRunError("other numbers came out than by the hand-written loop")


def _by_score(files: Sequence[Path]) -> np.ndarray:
    """First cell and score of each row, in an order that does not depend on the files'."""
    lines = [line.split(b",") for file in files for line in file.read_bytes().splitlines()]
    table = np.array([(cells[0], cells[-1]) for cells in lines], np.float64).reshape(-1, 2)
    # By the cell first: its text survives exactly, which the score's does not.
    return table[np.lexsort((table[:, 1], table[:, 0]))]
