"""Show what `make demo` wrote, and check it against scikit-learn.

Reads the parts and the report that ``headrace stream … --output demo/predictions`` left, and `expected.npz` of
make_demo_data.py. Exits with 1 when a prediction is missing, or differs from scikit-learn's own by more than 1e-5.
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
    """What was written is not what scikit-learn says."""


@dataclass(frozen=True)
class Predictions:
    """All parts, in order: labels (rows,), probabilities (rows, 2)."""

    parts: tuple[Path, ...]
    labels: Any
    probabilities: Any


@dataclass(frozen=True)
class Comparison:
    """Shares are of all rows, and of those that the model had not seen in training."""

    accuracy: float
    accuracy_held_out: float
    difference_max: float


def read_predictions(folder: Path) -> Predictions:
    """Every part of the output; raises WrongDemoError when there are none."""
    parts = tuple(sorted(folder.glob("part-*.csv")))
    if not parts:
        raise WrongDemoError(f"no part-*.csv in {folder}: did `headrace stream` run?")
    labels: list[int] = []
    probabilities: list[tuple[float, ...]] = []
    for part in parts:
        with part.open(newline="") as lines:
            for row in csv.DictReader(lines):
                labels.append(int(row[LABEL]))
                probabilities.append(tuple(float(row[name]) for name in PROBABILITIES))
    return Predictions(parts, np.array(labels), np.array(probabilities))


def compare(predictions: Predictions, expected: Any) -> Comparison:
    """Row by row, in source order.

    Raises:
        WrongDemoError: rows are missing, or a probability is further than DIFFERENCE_MAX from scikit-learn's.
    """
    rows, original = len(predictions.labels), len(expected["target"])
    if rows == 0 or rows % original:
        raise WrongDemoError(f"{rows} predictions are no multiple of the {original} rows of the data")
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
    """The first predictions, beside the labels that the data has for them."""
    table = Table(LABEL, *PROBABILITIES, "label in the data", title="First rows", title_justify="left")
    for row in range(min(ROWS_SHOWN, len(predictions.labels))):
        numbers = [f"{value:.6f}" for value in predictions.probabilities[row]]
        table.add_row(str(predictions.labels[row]), *numbers, str(target[row]))
    return table


def facts(predictions: Predictions, comparison: Comparison, report: dict[str, Any]) -> Table:
    """Accuracy, agreement and speed, one a line; `headrace stream` itself has said how much memory it took."""
    rows = len(predictions.labels)
    table = Table.grid(padding=(0, 2))
    table.add_row("predictions", f"{rows:,} rows in {len(predictions.parts)} part(s)")
    table.add_row(
        "accuracy",
        f"{comparison.accuracy_held_out:.2%} on rows held out of the training, {comparison.accuracy:.2%} on all",
    )
    table.add_row(
        "scikit-learn", f"at most {comparison.difference_max:.1e} apart (allowed: {DIFFERENCE_MAX:.0e})"
    )
    table.add_row("speed", f"{report['rows_per_s']:,.0f} rows/s")
    table.add_row("peak memory", f"{report['peak_memory_mb']:,.0f} MB")
    return table


def main() -> int:
    """Show and check; 0 when all is as scikit-learn says."""
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
