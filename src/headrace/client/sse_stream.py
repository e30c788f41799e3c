"""Decode server-sent events of the Open Inference Protocol into responses as they arrive."""

from collections.abc import AsyncGenerator, AsyncIterable

import orjson

from headrace.core.errors import EndpointRefusedError
from headrace.core.tensor import InferResponse
from headrace.protocols.oip_json import decode_error, decode_response
from headrace.protocols.sse import EventDecoder


async def read_responses(chunks: AsyncIterable[bytes], url: str) -> AsyncGenerator[InferResponse, None]:
    """Yield the response of each event, as soon as it is complete.

    Raises EndpointRefusedError for an error event: the stream failed on the server. Raises
    DataError for an event that is no response.
    """
    decoder = EventDecoder()
    async for chunk in chunks:
        for event in decoder.feed(chunk):
            if _is_error(event):
                raise EndpointRefusedError(url, f"the stream failed: {decode_error(event)}")
            yield decode_response(event, bf16="float32")


def _is_error(event: bytes) -> bool:
    try:
        found = orjson.loads(event)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and "error" in found and "outputs" not in found
