"""The Open Inference Protocol over gRPC: protobuf messages to requests, and responses to protobuf.

Pure.

- `requests`, `responses`: inference messages, for servers and clients.
- `server_info`: messages about the server, its models, its health and its services.

The message classes are in `headrace.protocols.protobuf`, and the services in `headrace.server.grpc_service`.
"""
