"""Codecs between network bytes and requests.

Pure: no module here opens a file, waits or reads a clock.

- `oip_json`: the Open Inference Protocol over REST, with its binary tensor extension.
- `oip_grpc`: the Open Inference Protocol as protobuf messages.
- `torchserve`: the bodies of TorchServe's ``/predictions``.

A client encodes requests and decodes responses. A server does the reverse.
"""
