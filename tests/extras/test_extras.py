"""The wheel with each extra, and nothing else: the commands that the extra promises work."""

import gzip
import io
import json
import tomllib
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import zstandard
from onnx import TensorProto, helper
from PIL import Image

from extras.environments import ROOT
from formats.framed_files import tfrecord
from formats.media.video_files import fragmented
from formats.table_writers import write_avro
from integration.command import predictions
from scaling.kubernetes_server import KubernetesServer
from servers.polling import wait_until
from servers.ports import free_port

pytestmark = pytest.mark.slow

PROMISES = {}
"""The tests of promises by extra."""
_NOT_PROMISED = {"all", "demo", "dev", "docs", "examples", "test", "mlserver"}
"""Extras that add no feature, and one whose packages exclude others: make test-mlserver."""

_MEAN = """
from headrace import Model, TensorSpec

class Mean(Model):
    inputs = (TensorSpec("{name}", "{datatype}", {shape}),)

    def predict(self, {name}):
        return {name}.reshape(len({name}), -1).mean(axis=1)
"""


def promise(*extras):
    """Register a test of extras that share an environment, for the test of completeness."""

    def register(test):
        PROMISES.update(dict.fromkeys(extras, test))
        return test

    return register


def succeed(environment, folder, *arguments, **environ):
    """Run a command, require status 0, and return its standard output."""
    done = environment.run(*arguments, folder=folder, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stream(environment, folder, source, *options, model="model.py"):
    """Stream a source through a model and return its predictions as numbers."""
    succeed(
        environment, folder, "stream", source, "--model", model, *options, "--output", "out/", "--overwrite"
    )
    return [float(line) for line in predictions(folder / "out").split()]


def score(model, **options):
    """Return the source of a program that prints a model's predictions of the rows."""
    return (
        "import headrace\n"
        f"options = headrace.PredictorOptions(model_options={options!r})\n"
        f"for outcome in headrace.stream('rows.csv', model={model!r}, options=options):\n"
        "    print(float(next(iter(outcome.outputs.values()))))\n"
    )


def write_mean(folder, name, datatype, shape):
    (folder / "mean.py").write_text(_MEAN.format(name=name, datatype=datatype, shape=shape))
    return "mean.py"


@contextmanager
def running(environment, folder, *arguments, **environ):
    """Run a server with a log as text; at the end send SIGTERM and require status 0."""
    with environment.start(*arguments, folder=folder, **environ) as process:
        yield process.wait_until_ready()
        assert process.terminate() == 0, "\n".join(process.log)


@pytest.fixture(scope="module")
def server(environments, tmp_path_factory):
    """A server that `serve` starts, for the clients of other environments."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "pair.py").write_text(_MEAN.format(name="x", datatype="FP32", shape="(-1, 2)"))
    environment = environments("serve")
    ports = ("--rest-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    with running(environment, folder, "serve", "pair.py", *ports) as process:
        yield SimpleNamespace(folder=folder, environment=environment, **process.urls)


def test_every_extra_has_a_test():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(PROMISES) == set(project["optional-dependencies"]) - _NOT_PROMISED


# Models


@promise("onnx")
def test_onnx_file_is_a_model(environments, folder):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    graph = helper.make_graph([node], "graph", [x], [y], [axes])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "sum.onnx").write_bytes(proto.SerializeToString())
    assert stream(environments("onnx"), folder, "rows.csv", model="sum.onnx") == [3, 7]


@promise("sklearn")
def test_skops_file_is_a_model(environments, folder):
    scores = environments("sklearn").script(
        "import numpy as np, skops.io\n"
        "from sklearn.linear_model import LinearRegression\n"
        "x = np.array([[1., 2], [3, 4], [0, 5]])\n"
        "skops.io.dump(LinearRegression().fit(x, x.sum(axis=1)), 'sum.skops')\n" + score("sum.skops"),
        folder,
    )
    assert list(map(float, scores.split())) == pytest.approx([3, 7])


@promise("torch")
def test_torchscript_file_is_a_model(environments, folder):
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    scores = environments("torch").script(
        "import torch\n"
        "class Sum(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.sum(dim=1)\n"
        "torch.jit.trace(Sum(), torch.ones(2, 2)).save('sum.pt')\n" + score("sum.pt", inputs=inputs),
        folder,
    )
    assert scores == "3.0\n7.0\n"


@promise("mlflow", "pandas")
def test_mlflow_folder_is_a_model(environments, folder):
    """The extra includes pandas: the model's input is a frame."""
    scores = environments("mlflow").script(
        "import mlflow\n"
        "from mlflow.types.schema import ColSpec, Schema\n"
        "class Sum(mlflow.pyfunc.PythonModel):\n"
        "    def predict(self, context, model_input, params=None):\n"
        "        return model_input.sum(axis=1)\n"
        "columns = Schema([ColSpec('double', 'a'), ColSpec('double', 'b')])\n"
        "signature = mlflow.models.ModelSignature(columns, Schema([ColSpec('double')]))\n"
        "mlflow.pyfunc.save_model('sum', python_model=Sum(), signature=signature, pip_requirements=[])\n"
        + score("sum", allow_pickle=True),
        folder,
    )
    assert scores == "3.0\n7.0\n"


@pytest.mark.soak
@promise("huggingface")
def test_hugging_face_folder_is_a_model(environments, folder):
    environment = environments("huggingface")
    environment.script(
        "import transformers\n"
        "from tokenizers import Tokenizer, models\n"
        "words = Tokenizer(models.WordLevel({'[UNK]': 0, '[PAD]': 1}, unk_token='[UNK]'))\n"
        "transformers.PreTrainedTokenizerFast(\n"
        "    tokenizer_object=words, unk_token='[UNK]', pad_token='[PAD]', model_max_length=8\n"
        ").save_pretrained('words')\n"
        "sizes = dict(vocab_size=2, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)\n"
        "config = transformers.BertConfig(**sizes, intermediate_size=8, max_position_embeddings=8)\n"
        "transformers.BertForSequenceClassification(config).save_pretrained('words')\n",
        folder,
    )
    (folder / "texts.txt").write_text("what a day\nnever again\n")
    options = ("--format", "line", "--output-format", "jsonl", "--output", "out/")
    succeed(environment, folder, "stream", "texts.txt", "--model", "words", *options)
    assert predictions(folder / "out", "jsonl").count(b"\n") == 2


# Formats


@promise("fast")
def test_fast_decoders_are_used(environments, folder):
    """Without the extra slower decoders take their place, so the model reports the loaded ones."""
    (folder / "model.py").write_text(
        "import sys\n\n"
        "from headrace import Model, TensorSpec\n\n\n"
        "class Loaded(Model):\n"
        "    inputs = (TensorSpec('x', 'FP32', (-1, 2)),)\n\n"
        "    def predict(self, x):\n"
        "        return x[:, 0] * 0 + sum(name in sys.modules for name in ('simdjson', 'isal'))\n"
    )
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(b"[1, 2]\n"))
    assert stream(environments("fast"), folder, "rows.jsonl.gz") == [2]


@promise("delta")
def test_delta_reads_and_writes_tables(environments, tmp_path):
    model = write_mean(tmp_path, "number", "FP64", "(-1, 1)")
    (tmp_path / "in.csv").write_text("2\n4\n")
    environment = environments("delta")
    succeed(environment, tmp_path, "stream", "in.csv", "--model", model, "--output", "delta:table")
    (tmp_path / "again.py").write_text(_MEAN.format(name="output", datatype="FP64", shape="(-1, 1)"))
    assert stream(environment, tmp_path, "table", model="again.py") == [2.0, 4.0]


@promise("iceberg")
def test_iceberg_reads_tables(environments, tmp_path):
    """The catalog of the test needs another extra of pyiceberg."""
    catalogs = pytest.importorskip("pyiceberg.catalog")
    catalog = catalogs.load_catalog(
        "test", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    catalog.create_namespace("a")
    rows = pa.table({"x": [2.0, 4.0]})
    table = catalog.create_table("a.b", schema=rows.schema)
    table.append(rows)
    model = write_mean(tmp_path, "x", "FP64", "(-1, 1)")
    source = f"iceberg:{table.metadata_location}"
    assert stream(environments("iceberg"), tmp_path, source, model=model) == [2.0, 4.0]


@promise("arrow")
def test_parquet_is_read_and_written(environments, folder):
    table = pa.table({"x": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))})
    pq.write_table(table, folder / "rows.parquet")
    environment = environments("arrow")
    succeed(environment, folder, "transform", "rows.parquet", "done/", "--model", "model.py")
    assert (folder / "done" / "rows.parquet.out").read_bytes() == b'{"output":3.0}\n{"output":7.0}\n'
    options = ("--output-format", "parquet", "--output", "out/")
    succeed(environment, folder, "stream", "rows.csv", "--model", "model.py", *options)
    (part,) = (folder / "out").glob("*.parquet")
    assert [*pq.read_table(part).to_pydict().values()] == [[3, 7]]


@promise("avro")
def test_avro_is_read(environments, folder):
    (folder / "rows.avro").write_bytes(write_avro({"a": [1.0, 3.0], "b": [2.0, 4.0]}))
    assert stream(environments("avro"), folder, "rows.avro") == [3, 7]


@promise("zstd")
def test_zstd_is_decompressed(environments, folder):
    (folder / "rows.csv.zst").write_bytes(zstandard.compress(b"1,2\n3,4\n"))
    assert stream(environments("zstd"), folder, "rows.csv.zst") == [3, 7]


@promise("tfrecord")
def test_tfrecord_is_read(environments, folder):
    (folder / "a.tfrecord").write_bytes(tfrecord([b"abc", b"de"]))
    (folder / "model.py").write_text(
        "import numpy as np\n\n"
        "from headrace import Model, TensorSpec\n\n\n"
        "class Length(Model):\n"
        "    inputs = (TensorSpec('t', 'BYTES', (-1,)),)\n\n"
        "    def predict(self, t):\n"
        "        return np.array([len(value) for value in t])\n"
    )
    assert stream(environments("tfrecord"), folder, "a.tfrecord") == [3, 2]


@promise("image")
def test_images_are_decoded(environments, folder):
    Image.new("RGB", (2, 2), (9, 9, 9)).save(folder / "a.png")
    model = write_mean(folder, "image", "UINT8", (-1, 2, 2, 3))
    assert stream(environments("image"), folder, "a.png", model=model) == [9]


@promise("audio")
def test_flac_is_decoded(environments, folder):
    file = io.BytesIO()
    soundfile.write(file, np.full(160, 0.5), 16_000, format="FLAC")
    (folder / "a.flac").write_bytes(file.getvalue())
    model = write_mean(folder, "samples", "FP32", (-1, 160))
    assert stream(environments("audio"), folder, "a.flac", "--window-ms", "10", model=model) == [0.5]


@promise("video")
def test_video_is_decoded(environments, folder):
    (folder / "a.mp4").write_bytes(fragmented(frames=2))
    model = write_mean(folder, "image", "UINT8", (-1, 32, 48, 3))
    assert len(stream(environments("video"), folder, "a.mp4", model=model)) == 2


# Servers and their clients


@promise("serve")
def test_server_has_its_clients(server):
    for url in (server.rest, server.grpc):
        scores = ("infer", "pair", "--input", "[[1, 3]]", "--url", url, "--json")
        response = json.loads(succeed(server.environment, server.folder, *scores))
        assert response["outputs"][0]["data"] == [2.0]


@promise("http")
def test_rest_client_and_endpoint(environments, server, folder):
    environment = environments("http")
    assert "pair" in succeed(environment, folder, "models", "--url", server.rest)
    endpoint = ("--endpoint", f"{server.rest}/v2/models/pair", "--output", "out/")
    succeed(environment, folder, "stream", "rows.csv", *endpoint)
    assert predictions(folder / "out") == b"1.5\n3.5\n"


@promise("grpc")
def test_grpc_client(environments, server, folder):
    assert "pair" in succeed(environments("grpc"), folder, "models", "--url", server.grpc)


@promise("http2", "otel")
def test_asgi_carrier_with_traces(environments, folder):
    """Each of the two extras is useless without the server, and neither has the other's packages."""
    environment = environments("serve", "http2", "otel")
    options = ("--grpc-carrier", "asgi", "--no-rest", "--grpc-port", "0", "--no-metrics")
    traces = {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}",
    }
    traces["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"
    with running(environment, folder, "serve", "model.py", *options, **traces) as process:
        shown = succeed(environment, folder, "models", "--url", process.urls["grpc"])
        assert "model" in shown


# Jobs


@promise("jobs")
def test_jobs_without_served_models(environments, folder):
    environment = environments("jobs")
    with running(environment, folder, "up", "model.py", "--no-serve", "--no-metrics", "--port", "0") as up:
        to = {"HEADRACE_SERVER": up.urls["jobs"]}
        id = succeed(environment, folder, "submit", "--input", "[[1, 2]]", "--model", "model", **to).strip()
        result = succeed(environment, folder, "jobs", "result", "--wait", id, **to)
        assert json.loads(result)["outputs"][0]["data"] == [3.0]
        assert "default" in succeed(environment, folder, "queues", **to)


@promise("up")
def test_jobs_and_served_models(environments, folder):
    environment = environments("up")
    with running(
        environment, folder, "up", "model.py", "--port", "0", "--rest-port", "0", "--metrics-port", "0"
    ) as up:
        to = {"HEADRACE_SERVER": up.urls["jobs"], "HEADRACE_URL": up.urls["rest"]}
        request = ("submit", "--input", "[[1, 2]]", "--model", "model", "--wait")
        assert json.loads(succeed(environment, folder, *request, **to))["outputs"][0]["data"] == [3.0]
        assert "3" in succeed(environment, folder, "infer", "model", "--input", "[[1, 2]]", **to)


@promise("postgres")
def test_ledger_in_postgres_is_called(environments, folder):
    ledger = f"postgresql://jobs@127.0.0.1:{free_port()}/jobs"
    done = environments("postgres").run(
        "work", "model.py", "--ledger", ledger, "--store", "objects/", folder=folder
    )
    assert "cannot be opened" in done.stderr
    assert "refused" in done.stderr


@promise("aws", "rabbitmq", "redis")
@pytest.mark.parametrize(
    ("extra", "url", "reason"),
    [
        ("redis", "redis://127.0.0.1:{port}", "redis at 127.0.0.1"),
        ("rabbitmq", "amqp://u:p@127.0.0.1:{port}/", "rabbitmq at 127.0.0.1"),
        ("aws", "sqs://?region=eu-west-1", "sqs at http://127.0.0.1"),
    ],
)
def test_wakeup_broker_is_called(environments, folder, extra, url, reason):
    port = free_port()
    credentials = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    process = environments("jobs", extra).start(
        *("work", "model.py", "--isolation", "thread", "--dispatcher", url.format(port=port)),
        folder=folder,
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
        **credentials,
    )
    with process:
        process.wait_until_ready()
        wait_until(lambda: any(reason in line and "unavailable" in line for line in process.log), reason)


@promise("kubernetes")
def test_deployment_is_scaled(environments, folder):
    with KubernetesServer(replicas=2) as server:
        kubeconfig = str(server.write_kubeconfig(folder / "kubeconfig"))
        program = (
            "from headrace.scaling.actuators.kubernetes import DeploymentActuator\n"
            f"actuator = DeploymentActuator('ml', 'workers', kubeconfig={kubeconfig!r})\n"
            "actuator.start()\n"
            "print(actuator.members([]).starting)\n"
            "actuator.scale(3)\n"
        )
        assert environments("kubernetes").script(program, folder) == "2\n"
        assert server.replicas == 3


@promise("plots")
def test_plan_is_drawn(environments, folder):
    succeed(environments("jobs", "plots"), folder, "plan", "--run-s", "300", "--output", "plan.png")
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")


# Clusters


@pytest.mark.soak
@promise("beam", "ray")
@pytest.mark.parametrize("runner", ["beam", "ray"])
def test_transform_runs_on_a_cluster(environments, folder, runner):
    succeed(
        environments(runner),
        folder,
        "transform",
        "rows.csv",
        "done/",
        "--model",
        "model.py",
        "--runner",
        runner,
    )
    assert (folder / "done" / "rows.csv.out").read_bytes() == b"3.0\n7.0\n"
