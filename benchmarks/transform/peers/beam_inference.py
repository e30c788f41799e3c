"""Apache Beam: RunInference with its own ONNX handler, keyed by the input line, on the
DirectRunner.
"""

import apache_beam as beam
import numpy as np
import onnxruntime
from apache_beam.io import ReadFromText, WriteToText
from apache_beam.ml.inference.base import KeyedModelHandler, RunInference
from apache_beam.ml.inference.onnx_inference import OnnxModelHandlerNumpy
from apache_beam.options.pipeline_options import PipelineOptions
from job import BATCH_ROWS, Job, read_arguments, session_options


class OneThread(OnnxModelHandlerNumpy):
    """Beam's handler with one thread. It accepts session options, but cannot pickle them for a
    worker.
    """

    def load_model(self) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(self._model_uri, session_options(), providers=self._providers)


def keyed(line: str) -> tuple[str, np.ndarray]:
    return line, np.array(line.split(","), np.float32)


def joined(scored) -> str:
    line, result = scored
    return f"{line},{result.inference[0]}"


def main() -> None:
    arguments = read_arguments(__doc__)
    handler = OneThread(
        arguments.onnx,
        providers=["CPUExecutionProvider"],
        min_batch_size=BATCH_ROWS // 4,
        max_batch_size=BATCH_ROWS,
    )
    job = Job("apache-beam")
    with beam.Pipeline(options=PipelineOptions([], runner="DirectRunner")) as pipeline:
        (
            pipeline
            | ReadFromText(arguments.csv)
            | beam.Map(keyed)
            | RunInference(KeyedModelHandler(handler))
            | beam.Map(joined)
            | WriteToText(f"{arguments.out}/scored.csv")
        )
    job.end(arguments)


if __name__ == "__main__":
    main()
