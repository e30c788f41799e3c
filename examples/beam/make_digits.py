"""Create the data of classify_images.py: scanned digits as PNG files, their list, and a model.

python examples/beam/make_digits.py s3://BUCKET/digits/ [--images 200] [--model digits.onnx]

scikit-learn contains the digits: 1,797 handwritten ones of 8 x 8 pixels, from forms that 43 people
filled in. The first half trains the model, the second half becomes images. Below the destination
(``s3://``, any other store, or a folder) this script writes ``images/00900.png`` and so on, and
``records.jsonl``. Each of its lines is ``{"id": ..., "image": URI, "digit": the truth}``.
"""

import argparse
import io
import json
from pathlib import Path

import numpy as np
from PIL import Image
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from headrace.storage.resolve import Stores

INK_MAX = 16  # largest pixel value of the data set
TRAINED = 898


def train(images, digits) -> bytes:
    """Return an ONNX model.

    It maps pixels (0 paper to 1 ink, float32, [n, 64]) to the digit and ten probabilities.
    """
    model = LogisticRegression(max_iter=1000).fit(images.reshape(len(images), -1) / INK_MAX, digits)
    inputs = [("pixels", FloatTensorType([None, images[0].size]))]
    return to_onnx(model, initial_types=inputs, options={"zipmap": False}).SerializeToString()


def png(image) -> bytes:
    """Return a PNG file with dark ink on white paper, as from a scanner."""
    file = io.BytesIO()
    Image.fromarray((255 - image * 255 / INK_MAX).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def main() -> None:
    """Write the model, the images and their list."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("destination", help="prefix or folder, such as s3://bucket/digits/")
    parser.add_argument("--images", type=int, default=200, help="number of images (default 200, limit 899)")
    parser.add_argument(
        "--model", type=Path, default=Path("digits.onnx"), help="file of the model (default digits.onnx)"
    )
    arguments = parser.parse_args()
    destination = arguments.destination.rstrip("/")
    data = load_digits()
    arguments.model.write_bytes(train(data.images[:TRAINED], data.target[:TRAINED]))
    records = []
    with Stores() as stores:
        store = stores.for_uri(destination)
        for index in range(TRAINED, min(TRAINED + arguments.images, len(data.target))):
            uri = f"{destination}/images/{index:05}.png"
            store.put(uri, png(data.images[index]))
            records.append({"id": f"{index:05}", "image": uri, "digit": int(data.target[index])})
        lines = "".join(json.dumps(record) + "\n" for record in records)
        store.put(f"{destination}/records.jsonl", lines.encode())
    print(f"{len(records)} images and {destination}/records.jsonl; {arguments.model}")


if __name__ == "__main__":
    main()
