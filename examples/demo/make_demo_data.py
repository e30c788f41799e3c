"""Make what `make demo` scores: a tar.gz of CSV files from real data, a model trained on it, and the answers.

The data is the breast-cancer set that scikit-learn ships: 569 tumours, 30 measured features, malignant (0) or
benign (1). It is small, so its rows are repeated (``--repeat``) to have something to stream; every repetition
holds the same 569 real rows.

Written to the folder given (default ``demo``):

- ``store/breast-cancer.tar.gz``: the CSV files, each with a header: the features by name, then ``target``
- ``model.onnx``: scaler and logistic regression, trained on three quarters of the rows; input ``x`` (float32, n x 30),
  outputs ``label`` and ``probabilities``
- ``expected.npz``: for the 569 rows in file order the labels, scikit-learn's own probabilities (float64), and
  which rows were held out of the training
"""

import argparse
import csv
import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

MEMBERS = 20
SEED = 20


def csv_member(names: list[str], features: Any, target: Any) -> bytes:
    """One CSV file: header, then the rows as Python prints them, so that they read back exactly."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "target"])
    for row, label in zip(features.tolist(), target.tolist(), strict=True):
        writer.writerow([*row, label])
    return text.getvalue().encode()


def write_archive(path: Path, names: list[str], features: Any, target: Any, members: int) -> int:
    """A tar.gz of the rows in order, spread over `members` files of nearly equal length; returns its CSV bytes.

    The same arguments give the same bytes: no time stamps, no owner.
    """
    csv_bytes = 0
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=4, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for number, rows in enumerate(np.array_split(np.arange(len(target)), members)):
            data = csv_member(names, features[rows], target[rows])
            header = tarfile.TarInfo(f"part-{number:04}.csv")
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
            csv_bytes += len(data)
    return csv_bytes


def train(features: Any, target: Any) -> tuple[Pipeline, Any]:
    """The fitted pipeline, and which rows it did not see."""
    rows = np.arange(len(target))
    seen, unseen = train_test_split(rows, test_size=0.25, random_state=SEED, stratify=target)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    pipeline.fit(features[seen], target[seen])
    held_out = np.zeros(len(target), bool)
    held_out[unseen] = True
    return pipeline, held_out


def export(pipeline: Pipeline, width: int) -> bytes:
    """The pipeline as ONNX: any number of rows in, plain arrays out (no ZipMap)."""
    inputs = [("x", FloatTensorType([None, width]))]
    model = to_onnx(pipeline, initial_types=inputs, options={"zipmap": False})
    return model.SerializeToString()


def make(folder: Path, repeat: int, members: int) -> str:
    """Write all of it into the folder; returns a sentence on what was made."""
    data: Any = load_breast_cancer()
    names = [str(name).replace(" ", "_") for name in data.feature_names]
    pipeline, held_out = train(data.data, data.target)

    (folder / "store").mkdir(parents=True, exist_ok=True)
    archive = folder / "store" / "breast-cancer.tar.gz"
    features, target = np.tile(data.data, (repeat, 1)), np.tile(data.target, repeat)
    csv_bytes = write_archive(archive, names, features, target, members)
    (folder / "model.onnx").write_bytes(export(pipeline, len(names)))
    np.savez(
        folder / "expected.npz",
        target=data.target,
        probabilities=pipeline.predict_proba(data.data),
        held_out=held_out,
    )
    return (
        f"{archive}: {len(target):,} rows in {members} CSV files, {csv_bytes / 1e6:.1f} MB "
        f"({archive.stat().st_size / 1e6:.1f} MB compressed). These are scikit-learn's {len(data.target)} real rows, "
        f"{repeat} times over."
    )


def main() -> None:
    """Parse the command line, make the data, say what was made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("demo"))
    parser.add_argument("--repeat", type=int, default=1, help="how many times over the 569 rows (default 1)")
    parser.add_argument(
        "--members", type=int, default=MEMBERS, help=f"CSV files in the archive (default {MEMBERS})"
    )
    arguments = parser.parse_args()
    if arguments.repeat < 1 or arguments.members < 1:
        parser.error("--repeat and --members must be at least 1")
    print(make(arguments.folder, arguments.repeat, arguments.members))


if __name__ == "__main__":
    main()
