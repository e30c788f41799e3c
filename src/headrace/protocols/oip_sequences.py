"""JSON codec of the list of a model's sequences. Pure.

The list is an extension of headrace to the Open Inference Protocol.

``GET /v2/models/NAME/sequences`` returns the document to operators.
"""

from dataclasses import asdict
from typing import Any, Final, cast

import orjson

from headrace.core.errors import DataError
from headrace.core.sequence import SequenceInfo, SequenceListing

LIMIT_DEFAULT: Final = 1000
"""Number of listed sequences without the parameter ``limit``."""
LIMIT_MAX: Final = 100_000

_Json = dict[str, Any]


def encode_listing(listing: SequenceListing) -> bytes:
    """Return a listing as JSON. ``state`` is the stage of a sequence; times are in seconds."""
    return orjson.dumps(
        {
            "model_name": listing.model,
            "model_version": listing.version,
            "live": listing.live,
            "live_max": listing.live_max,
            "ends": dict(listing.ends),
            "sequences": [_entry(info) for info in listing.sequences],
        }
    )


def _entry(info: SequenceInfo) -> _Json:
    entry = asdict(info)
    entry["state"] = entry.pop("stage")
    return entry


def decode_listing(body: bytes) -> SequenceListing:
    """Return the listing of a document. Raises DataError for another document."""
    try:
        found: Any = orjson.loads(body)
        ends: _Json = found["ends"]
        return SequenceListing(
            str(found["model_name"]),
            str(found["model_version"]),
            int(found["live"]),
            int(found["live_max"]),
            {str(why): int(count) for why, count in ends.items()},
            tuple(_info(entry) for entry in cast("list[_Json]", found["sequences"])),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"the body is not a listing of sequences: {type(error).__name__}: {error}") from None


def _info(entry: _Json) -> SequenceInfo:
    return SequenceInfo(
        str(entry["id"]),
        str(entry["state"]),
        int(entry["instance"]),
        int(entry["steps"]),
        int(entry["requests"]),
        float(entry["age_s"]),
        float(entry["idle_s"]),
    )
