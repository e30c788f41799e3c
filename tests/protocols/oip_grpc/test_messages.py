"""Message classes are our own: no name of theirs is in protobuf's default pool, and foreign ones may come and go."""

import subprocess
import sys

import pytest
from google.protobuf import descriptor_pool

from headrace.core.errors import DataError
from headrace.protocols.oip_grpc.messages import file_descriptor, message_class, parsed
from headrace.protocols.oip_grpc.schema import FILES, HEALTH, INFERENCE

FOREIGN = """
from google.protobuf import descriptor_pb2, descriptor_pool
def register():
    file = descriptor_pb2.FileDescriptorProto(name="dataplane.proto", package="inference", syntax="proto3")
    for name in ("ServerLiveRequest", "ModelInferRequest", "InferParameter"):
        file.message_type.add(name=name).field.add(name="other", number=1, type=5, label=1)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
def ours():
    from headrace.protocols.oip_grpc.messages import message_class
    made = message_class("ModelInferRequest")(model_name="m")
    assert message_class("ModelInferRequest").FromString(made.SerializeToString()).model_name == "m"
"""


@pytest.mark.parametrize("order", ["register(); ours()", "ours(); register()"])
def test_messages_of_the_same_names_can_be_registered_beside_ours(order):
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN + order], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_default_pool_knows_none_of_our_messages():
    for file in FILES:
        for name in file.messages:
            with pytest.raises(KeyError):
                descriptor_pool.Default().FindMessageTypeByName(f"{file.package}.{name}")


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.package)
def test_every_message_of_the_tables_has_a_class_and_unique_numbers(file):
    for name, fields in file.messages.items():
        made = message_class(name, package=file.package)
        assert len(made.DESCRIPTOR.fields) == len(fields)
        assert len({f.number for f in made.DESCRIPTOR.fields}) == len(fields)


def test_fields_are_on_the_wire_where_the_protocol_has_them():
    """Bytes as any other implementation writes them."""
    parameter = message_class("InferParameter")
    assert parameter(double_param=1.0).SerializeToString() == b"\x21" + b"\0" * 6 + b"\xf0\x3f"
    assert parameter(uint64_param=3).SerializeToString() == b"\x28\x03"
    request = message_class("ModelInferRequest")(model_name="m", id="i", raw_input_contents=[b"ab"])
    assert request.SerializeToString() == b"\x0a\x01m\x1a\x01i\x3a\x02ab"
    contents = message_class("InferTensorContents")(bool_contents=[True], bytes_contents=[b"x"])
    assert contents.SerializeToString() == b"\x0a\x01\x01\x42\x01x"


def test_a_health_watch_streams_one_way_and_inference_both():
    (watch,) = (m for m in file_descriptor(HEALTH).service[0].method if m.name == "Watch")
    assert (watch.client_streaming, watch.server_streaming) == (False, True)
    (stream,) = (m for m in file_descriptor(INFERENCE).service[0].method if m.name == "ModelStreamInfer")
    assert (stream.client_streaming, stream.server_streaming) == (True, True)


def test_bytes_that_are_no_message_are_a_data_error():
    with pytest.raises(DataError, match="3 bytes are no ModelInferRequest"):
        parsed(message_class("ModelInferRequest"), b"\x0a\x7fm")
