"""Codecs between network bytes and requests.

Pure: no module here opens a file, waits or reads a clock.

- `oip_json`: requests and responses of the Open Inference Protocol over REST, JSON or binary.
- `oip_documents`: its other JSON documents, such as metadata and errors.
- `plain_bodies`: bodies without descriptions of tensors, such as those of ``generate``.
- `oip_grpc`: the Open Inference Protocol as protobuf messages.
- `health_and_reflection`: the messages of health and reflection over gRPC.
- `protobuf`: the message classes of gRPC, made of the .proto files in `proto`. Clients in any language
  are made from these files.
- `torchserve`: the bodies of TorchServe's ``/predictions``.
- `external_metrics`: the documents by which autoscalers of Kubernetes read metrics.

A client encodes requests and decodes responses. A server does the reverse.
"""
