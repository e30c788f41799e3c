"""Create the data of `make demo`: CSV files in a tar.gz, a model, and the expected predictions.

The data is the breast-cancer set of scikit-learn: 569 tumours, 30 measured features, malignant (0)
or benign (1). The set is small, so its rows are repeated (``--repeat``). Every repetition has the
same 569 real rows.

Files in the folder (default ``demo``):

- ``store/breast-cancer.tar.gz``: CSV files with a header: the features by name, then ``target``
- ``model.onnx``: scaler and logistic regression, trained on three quarters of the rows; input ``x``
  (float32, n x 30), outputs ``label`` and ``probabilities``
- ``expected.npz``: for the 569 rows in file order the labels, scikit-learn's own probabilities
  (float64), and a mark for each row that was held out of the training
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
    """Return one CSV file: a header, then rows with `repr` of each number, which read back exactly."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "target"])
    for row, label in zip(features.tolist(), target.tolist(), strict=True):
        writer.writerow([*row, label])
    return text.getvalue().encode()


def write_archive(path: Path, names: list[str], features: Any, target: Any, members: int) -> int:
    """Write the rows in order as a tar.gz of `members` CSV files of nearly equal length.

    The same arguments give the same bytes: there are no time stamps and no owner. Return the size
    of the CSV files in bytes.
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
    """Return the fitted pipeline, and a boolean array that marks the rows held out of the training."""
    rows = np.arange(len(target))
    seen, unseen = train_test_split(rows, test_size=0.25, random_state=SEED, stratify=target)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    pipeline.fit(features[seen], target[seen])
    held_out = np.zeros(len(target), bool)
    held_out[unseen] = True
    return pipeline, held_out


def export(pipeline: Pipeline, width: int) -> bytes:
    """Return the pipeline as ONNX for any number of rows, with arrays as outputs (no ZipMap)."""
    inputs = [("x", FloatTensorType([None, width]))]
    model = to_onnx(pipeline, initial_types=inputs, options={"zipmap": False})
    return model.SerializeToString()


def make(folder: Path, repeat: int, members: int) -> str:
    """Write all files into the folder. Return a summary for the user."""
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
        f"({archive.stat().st_size / 1e6:.1f} MB compressed): scikit-learn's {len(data.target)} real rows, "
        f"repeated {repeat} times"
    )


def main() -> None:
    """Parse the command line, write the files and print a summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("demo"))
    parser.add_argument("--repeat", type=int, default=1, help="repetitions of the 569 rows (default 1)")
    parser.add_argument(
        "--members", type=int, default=MEMBERS, help=f"number of CSV files in the archive (default {MEMBERS})"
    )
    arguments = parser.parse_args()
    if arguments.repeat < 1 or arguments.members < 1:
        parser.error("--repeat and --members must be at least 1")
    print(make(arguments.folder, arguments.repeat, arguments.members))


if __name__ == "__main__":
    main()
