"""The Open Inference Protocol over gRPC: protobuf messages to requests, and responses to protobuf.

Pure.

- `requests`, `responses`: inference messages, for servers and clients.
- `server_info`: messages about the models of a server and their repository.

The message classes are in `headrace.protocols.protobuf`, and the services in `headrace.server.grpc_service`.
"""
