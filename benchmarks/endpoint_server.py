"""Serve an ONNX model over HTTP, for the scripts that call an endpoint, until standard input ends.

python benchmarks/endpoint_server.py MODEL.onnx
"""

import sys
from pathlib import Path

from headrace.runtimes.onnx import OnnxModel
from headrace.testing import ScriptedEndpoint


def main() -> None:
    model = OnnxModel(Path(sys.argv[1]))
    model.load()
    served = ScriptedEndpoint(
        lambda tensors: model.predict(**tensors), inputs=model.inputs, outputs=model.outputs
    )
    with served as endpoint:
        print(f"{endpoint.oip_url}/infer", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
