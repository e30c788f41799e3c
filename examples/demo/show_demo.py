"""Show the predictions of `make demo`, and compare them with scikit-learn's.

The script reads the parts and the report of ``headrace stream … --output demo/predictions``, and
`expected.npz` of make_demo_data.py. It exits with 1 if a prediction is missing, or differs from
scikit-learn's own by more than 1e-5.
"""

import argparse
import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

DIFFERENCE_MAX = 1e-5
ROWS_SHOWN = 5
LABEL, PROBABILITIES = "label", ("probabilities_0", "probabilities_1")


class WrongDemoError(Exception):
    """The predictions differ from scikit-learn's."""


@dataclass(frozen=True)
class Predictions:
    """The predictions of all parts in order: labels (rows,), probabilities (rows, 2)."""

    parts: tuple[Path, ...]
    labels: Any
    probabilities: Any


@dataclass(frozen=True)
class Comparison:
    """The result of the comparison.

    The shares are those of all rows, and of the rows held out of the training.
    """

    accuracy: float
    accuracy_held_out: float
    difference_max: float


def read_predictions(folder: Path) -> Predictions:
    """Read every part of the output. Raise WrongDemoError if there is none."""
    parts = tuple(sorted(folder.glob("part-*.csv")))
    if not parts:
        raise WrongDemoError(f"no part-*.csv in {folder}: run `headrace stream` first")
    labels: list[int] = []
    probabilities: list[tuple[float, ...]] = []
    for part in parts:
        with part.open(newline="") as lines:
            for row in csv.DictReader(lines):
                labels.append(int(row[LABEL]))
                probabilities.append(tuple(float(row[name]) for name in PROBABILITIES))
    return Predictions(parts, np.array(labels), np.array(probabilities))


def compare(predictions: Predictions, expected: Any) -> Comparison:
    """Compare all rows in source order.

    Raises:
        WrongDemoError: Rows are missing, or a probability differs from scikit-learn's by more than
            DIFFERENCE_MAX.
    """
    rows, original = len(predictions.labels), len(expected["target"])
    if rows == 0 or rows % original:
        raise WrongDemoError(f"{rows} predictions are not a multiple of the {original} rows of the data")
    repeat = rows // original
    difference = np.abs(predictions.probabilities - np.tile(expected["probabilities"], (repeat, 1)))
    worst = int(difference.max(axis=1).argmax())
    if not difference.max() <= DIFFERENCE_MAX:
        raise WrongDemoError(
            f"row {worst}: {predictions.probabilities[worst]} differs from scikit-learn's "
            f"{expected['probabilities'][worst % original]} by more than {DIFFERENCE_MAX}"
        )
    right = predictions.labels == np.tile(expected["target"], repeat)
    held_out = np.tile(expected["held_out"], repeat)
    return Comparison(float(right.mean()), float(right[held_out].mean()), float(difference.max()))


def first_rows(predictions: Predictions, target: Any) -> Table:
    """Return a table of the first predictions beside the labels in the data."""
    table = Table(LABEL, *PROBABILITIES, "label in the data", title="First rows", title_justify="left")
    for row in range(min(ROWS_SHOWN, len(predictions.labels))):
        numbers = [f"{value:.6f}" for value in predictions.probabilities[row]]
        table.add_row(str(predictions.labels[row]), *numbers, str(target[row]))
    return table


def facts(predictions: Predictions, comparison: Comparison, report: dict[str, Any]) -> Table:
    """Return a table of accuracy, agreement, speed and memory."""
    rows = len(predictions.labels)
    table = Table.grid(padding=(0, 2))
    table.add_row("predictions", f"{rows:,} rows in {len(predictions.parts)} part(s)")
    table.add_row(
        "accuracy",
        f"{comparison.accuracy_held_out:.2%} on rows held out of the training, "
        f"{comparison.accuracy:.2%} on all",
    )
    table.add_row(
        "scikit-learn", f"largest difference {comparison.difference_max:.1e} (limit {DIFFERENCE_MAX:.0e})"
    )
    table.add_row("speed", f"{report['rows_per_s']:,.0f} rows/s")
    table.add_row("peak memory", f"{report['peak_memory_mb']:,.0f} MB")
    return table


def main() -> int:
    """Show the results and check them. Return 0 if all predictions agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("demo"))
    folder: Path = parser.parse_args().folder
    console = Console(highlight=False)
    output = folder / "predictions"
    try:
        predictions = read_predictions(output)
        with np.load(folder / "expected.npz") as expected:
            comparison = compare(predictions, expected)
            rows = first_rows(predictions, expected["target"])
    except WrongDemoError as error:
        console.print(f"[red]The demo failed:[/red] {error}", soft_wrap=True)
        return 1
    report = json.loads((output / "_headrace" / "report.json").read_text())
    first, *others = predictions.parts
    more = f" and {len(others)} more" if others else ""
    console.print(f"\nThe predictions are in [bold]{first}[/bold]{more}\n", soft_wrap=True)
    console.print(rows)
    console.print(facts(predictions, comparison, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
