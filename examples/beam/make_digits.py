"""Makes what classify_images.py works on: scanned digits as PNG files, a list of them, and a model that reads them.

python examples/beam/make_digits.py s3://BUCKET/digits/ [--images 200] [--model digits.onnx]

The digits are the ones that scikit-learn ships: 1,797 handwritten ones, 8 x 8 pixels, from the forms that 43 people filled in.
The model is trained on the first half of them; images are of the other. Written below the destination (``s3://``, any other store,
or a folder): ``images/00900.png`` and so on, and ``records.jsonl``, of which each line is ``{"id": ..., "image": URI, "digit": the truth}``.
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

INK_MAX = 16  # of the data set's pixels
TRAINED = 898


def train(images, digits) -> bytes:
    """An ONNX file: pixels (0 paper to 1 ink, float32, [n, 64]) in, the digit and ten probabilities out."""
    model = LogisticRegression(max_iter=1000).fit(images.reshape(len(images), -1) / INK_MAX, digits)
    inputs = [("pixels", FloatTensorType([None, images[0].size]))]
    return to_onnx(model, initial_types=inputs, options={"zipmap": False}).SerializeToString()


def png(image) -> bytes:
    """Dark ink on white paper, as a scanner sees it."""
    file = io.BytesIO()
    Image.fromarray((255 - image * 255 / INK_MAX).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def main() -> None:
    """Write all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("destination", help="a prefix or folder, such as s3://bucket/digits/")
    parser.add_argument("--images", type=int, default=200, help="how many (default 200, at most 899)")
    parser.add_argument("--model", type=Path, default=Path("digits.onnx"), help="where the model goes")
    given = parser.parse_args()
    destination = given.destination.rstrip("/")
    data = load_digits()
    given.model.write_bytes(train(data.images[:TRAINED], data.target[:TRAINED]))
    records = []
    with Stores() as stores:
        store = stores.for_uri(destination)
        for index in range(TRAINED, min(TRAINED + given.images, len(data.target))):
            uri = f"{destination}/images/{index:05}.png"
            store.put(uri, png(data.images[index]))
            records.append({"id": f"{index:05}", "image": uri, "digit": int(data.target[index])})
        lines = "".join(json.dumps(record) + "\n" for record in records)
        store.put(f"{destination}/records.jsonl", lines.encode())
    print(f"{len(records)} images and {destination}/records.jsonl; {given.model}")


if __name__ == "__main__":
    main()
