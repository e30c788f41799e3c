"""Message classes in a private pool, apart from protobuf's default pool and foreign messages."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from cases import for_each
from headrace.core.errors import DataError
from headrace.protocols import protobuf
from headrace.protocols.protobuf import file_descriptors, message_class, parse_message

PROTO = Path(protobuf.__file__).parent / "proto"
FILES = {file.package: file for file in file_descriptors()}

FOREIGN = """
from google.protobuf import descriptor_pb2, descriptor_pool
def register():
    file = descriptor_pb2.FileDescriptorProto(name="dataplane.proto", package="inference", syntax="proto3")
    for name in ("ServerLiveRequest", "ModelInferRequest", "InferParameter"):
        file.message_type.add(name=name).field.add(name="other", number=1, type=5, label=1)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
def headrace():
    from headrace.protocols.protobuf import message_class
    message = message_class("ModelInferRequest")(model_name="m")
    assert message_class("ModelInferRequest").FromString(message.SerializeToString()).model_name == "m"
"""


@for_each("order", ["register(); headrace()", "headrace(); register()"])
def test_foreign_messages_of_the_same_names_can_be_registered(order):
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN + order], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_default_pool_has_no_headrace_messages():
    for file in FILES.values():
        for message in file.message_type:
            with pytest.raises(KeyError):
                descriptor_pool.Default().FindMessageTypeByName(f"{file.package}.{message.name}")


@pytest.mark.slow
def test_descriptor_set_is_that_of_the_proto_files(tmp_path):
    """Otherwise run `make descriptors`."""
    compiled = tmp_path / "descriptors.binpb"
    arguments = [
        f"-Iheadrace={PROTO}",
        f"--descriptor_set_out={compiled}",
        *map(str, sorted(PROTO.glob("*.proto"))),
    ]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True, timeout=60)
    assert compiled.read_bytes() == (PROTO / "descriptors.binpb").read_bytes()


def test_fields_have_the_protocols_wire_positions():
    """The bytes are those of any other implementation."""
    parameter = message_class("InferParameter")
    assert parameter(double_param=1.0).SerializeToString() == b"\x21" + b"\0" * 6 + b"\xf0\x3f"
    assert parameter(uint64_param=3).SerializeToString() == b"\x28\x03"
    request = message_class("ModelInferRequest")(model_name="m", id="i", raw_input_contents=[b"ab"])
    assert request.SerializeToString() == b"\x0a\x01m\x1a\x01i\x3a\x02ab"
    contents = message_class("InferTensorContents")(bool_contents=[True], bytes_contents=[b"x"])
    assert contents.SerializeToString() == b"\x0a\x01\x01\x42\x01x"


def test_health_watch_streams_one_way_and_inference_both():
    (watch,) = (m for m in FILES["grpc.health.v1"].service[0].method if m.name == "Watch")
    assert (watch.client_streaming, watch.server_streaming) == (False, True)
    (stream,) = (m for m in FILES["inference"].service[0].method if m.name == "ModelStreamInfer")
    assert (stream.client_streaming, stream.server_streaming) == (True, True)


def test_malformed_message_is_a_data_error():
    with pytest.raises(DataError, match="3 bytes are not a ModelInferRequest"):
        parse_message(message_class("ModelInferRequest"), b"\x0a\x7fm")
