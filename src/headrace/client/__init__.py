"""Predictors over the network: bounded, retried, with a circuit, and exact about which rows were refused.

`endpoint.endpoint_predictor` makes one of a URL. Two dialects stand behind it (`oip_rest`, `torchserve_rest`); both
send what `headrace.protocols` encodes through one `asking.Asker`, which alone knows about retries.
"""
