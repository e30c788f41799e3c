"""Network bytes to requests, and back; pure: nothing here opens, waits or reads a clock.

`oip_json` is the Open Inference Protocol's REST form with its binary tensor extension, `oip_grpc` its protobuf
form, `torchserve` what TorchServe's ``/predictions`` takes and gives. A client encodes requests and decodes responses; a server does the reverse.
"""
