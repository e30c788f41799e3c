"""Messages about models: configuration, statistics, and the two forms of a load request."""

import orjson
import pytest
from google.protobuf.json_format import MessageToDict

from cases import for_each
from headrace.core.errors import DataError
from headrace.core.statistics import BatchStatistics, Duration, ModelStatistics
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.protocols import oip_documents
from headrace.protocols.oip_documents import model_config
from headrace.protocols.oip_grpc.server_info import (
    encode_metadata,
    encode_statistics,
    load_parameters,
    requested_model,
)
from headrace.protocols.protobuf import encode_message, message_class

Config = message_class("ModelConfigResponse")
Load = message_class("RepositoryModelLoadRequest")


def config_message(metadata):
    return Config.FromString(encode_message("ModelConfigResponse", config=model_config(metadata)))


def config_of(**settings):
    return config_message(ModelMetadata("m", "1", "onnx", **settings)).config


def test_batched_model_configuration_omits_rows():
    config = config_of(
        inputs=(TensorSpec("x", "FP32", (-1, 4)), TensorSpec("t", "BYTES", (-1, 1))),
        outputs=(TensorSpec("y", "BF16", (-1, 2)),),
        max_batch_rows=32,
        max_batch_delay_ms=1.5,
    )
    assert (config.name, config.platform, config.backend, config.max_batch_size) == (
        "m",
        "onnx",
        "headrace",
        32,
    )
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [("x", 11, [4]), ("t", 13, [1])]
    assert [(o.name, o.data_type, list(o.dims)) for o in config.output] == [("y", 14, [2])]
    assert config.dynamic_batching.max_queue_delay_microseconds == 1500
    assert not config.model_transaction_policy.decoupled


@for_each("shape", [None, (-1,), (3, 4)])
def test_unbatched_model_configuration_has_whole_shapes(shape):
    config = config_of(inputs=(TensorSpec("x", "FP32", shape),))
    assert config.max_batch_size == 0
    assert tuple(config.input[0].dims) == (shape or (-1,))


def test_stream_only_model_is_decoupled():
    assert config_of(can_stream=True, can_predict=False).model_transaction_policy.decoupled


@for_each("shape", [None, (-1, 4), (3, 4)])
def test_rest_returns_the_same_configuration(shape):
    metadata = ModelMetadata(
        "m", "1", "onnx", inputs=(TensorSpec("x", "BYTES", shape),), outputs=(TensorSpec("y", "FP16", shape),)
    )
    config = MessageToDict(config_message(metadata).config, preserving_proto_field_name=True)
    document = orjson.loads(orjson.dumps(model_config(metadata)))
    assert document == model_config(metadata)
    assert document["input"][0]["data_type"] == config["input"][0]["data_type"] == "TYPE_STRING"
    assert document["output"][0]["dims"] == [int(size) for size in config["output"][0]["dims"]]
    assert document["max_batch_size"] == config.get("max_batch_size", 0)
    assert document["dynamic_batching"]["max_queue_delay_microseconds"] == int(
        config["dynamic_batching"]["max_queue_delay_microseconds"]
    )
    assert document.keys() - config.keys() <= {"max_batch_size", "model_transaction_policy"}


def test_metadata_has_all_versions_and_variable_shape():
    metadata = ModelMetadata("m", "2", "onnx", inputs=(TensorSpec("x", "FP32", None),))
    message = message_class("ModelMetadataResponse").FromString(encode_metadata(metadata, ("1", "2")))
    assert (message.name, list(message.versions), message.platform) == ("m", ["1", "2"], "onnx")
    assert list(message.inputs[0].shape) == [-1]


def test_statistics_count_rows_and_calls():
    statistics = ModelStatistics(
        "m",
        "1",
        last_inference_ms=5,
        rows=30,
        failed_rows=2,
        calls=4,
        success=Duration(9, 100),
        fail=Duration(1, 2),
        queue=Duration(10, 3),
        compute_infer=Duration(4, 50),
        batches=(BatchStatistics(8, Duration(3, 40)),),
    )
    (model,) = (
        message_class("ModelStatisticsResponse").FromString(encode_statistics([statistics])).model_stats
    )
    (over_rest,) = orjson.loads(oip_documents.encode_statistics([statistics]))["model_stats"]
    assert over_rest["inference_count"] == model.inference_count
    assert over_rest["execution_count"] == model.execution_count
    assert (model.last_inference, model.inference_count, model.execution_count) == (5, 30, 4)
    stats = model.inference_stats
    assert [(d.count, d.ns) for d in (stats.success, stats.fail, stats.queue, stats.compute_infer)] == [
        (9, 100),
        (1, 2),
        (10, 3),
        (4, 50),
    ]
    assert [(b.batch_size, b.compute_infer.count, b.compute_infer.ns) for b in model.batch_stats] == [
        (8, 3, 40)
    ]


@for_each(
    "fields", [{"model_name": "m"}, {"repository_name": "m"}, {"repository_name": "r", "model_name": "m"}]
)
def test_model_name_is_read_from_field_two_or_one(fields):
    assert requested_model(Load(**fields)) == "m"


def test_load_without_name_is_refused():
    with pytest.raises(DataError, match="the model's name"):
        requested_model(Load())


def test_load_parameters_are_plain_values():
    request = Load(model_name="m")
    request.parameters["config"].string_param = "{}"
    request.parameters["file:1/model.onnx"].bytes_param = b"\0"
    assert load_parameters(request) == {"config": "{}", "file:1/model.onnx": b"\0"}
