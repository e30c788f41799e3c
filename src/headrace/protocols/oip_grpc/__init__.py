"""The Open Inference Protocol over gRPC: protobuf messages to requests, and responses to protobuf; pure.

`schema` says which messages and services there are, `messages` makes classes of them (and is the door to protobuf),
`requests` and `responses` translate inference, `repository` all that is said about models, `health` and `reflection`
the two services that every gRPC server has. Services themselves are in `headrace.server.grpc_service`.
"""
