"""The Open Inference Protocol over gRPC: protobuf messages to requests, and responses to protobuf.

Pure.

- `proto`: the messages and services as .proto files, from which clients in any language are made.
- `messages`: message classes made of these files; the only module that imports protobuf.
- `requests`, `responses`: inference messages, for servers and clients.
- `server_info`: messages about the server, its models, its health and its services.

The services themselves are in `headrace.server.grpc_service`.
"""
