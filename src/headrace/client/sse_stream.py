"""Server-sent events of the Open Inference Protocol as responses, while they come."""

from collections.abc import AsyncGenerator, AsyncIterable

import orjson

from headrace.core.errors import EndpointRefusedError
from headrace.core.tensor import InferResponse
from headrace.protocols.oip_json import decode_error, decode_response
from headrace.protocols.sse import EventDecoder


async def read_responses(pieces: AsyncIterable[bytes], url: str) -> AsyncGenerator[InferResponse, None]:
    """Each event's response, as soon as it is whole.

    Raises EndpointRefusedError for an event that is an error, which is how a stream says that it failed on the way; DataError
    for one that is no response.
    """
    decoder = EventDecoder()
    async for piece in pieces:
        for event in decoder.feed(piece):
            if _is_error(event):
                raise EndpointRefusedError(url, f"the stream failed: {decode_error(event)}")
            yield decode_response(event, bf16="float32")


def _is_error(event: bytes) -> bool:
    try:
        found = orjson.loads(event)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and "error" in found and "outputs" not in found
