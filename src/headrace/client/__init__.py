"""Clients of remote model servers.

`endpoint.endpoint_predictor` returns a `Predictor` for the model at a URL. It limits requests in
flight, retries transient failures, stops calling an endpoint that is down, and finds the rows that
the endpoint refuses. Two protocols implement it, the Open Inference Protocol and TorchServe's. Both
send what `headrace.protocols` encodes through one `retrying_client.RetryingClient`, the only place
that retries.

`model_server.ModelServerClient` gives access to a whole server: inference, streams, the repository,
statistics. It never retries.
"""
