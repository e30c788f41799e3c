"""The sequences of a model as a document, for whoever looks after a server: headrace's own addition to the Open Inference Protocol.

``GET /v2/models/NAME/sequences`` answers with it. Pure: listings in, documents out, and back.
"""

from dataclasses import asdict
from typing import Any, Final, cast
from urllib.parse import parse_qs

import orjson

from headrace.core.errors import DataError
from headrace.core.sequence import SequenceInfo, SequenceListing

LISTED: Final = 1000
"""How many sequences are listed where nobody says."""
LISTED_MAX: Final = 100_000

_Json = dict[str, Any]


def decode_limit(query: bytes) -> int:
    """How many sequences are to be listed, by the query parameter ``limit``. Raises DataError unless it is one number of 0 to LISTED_MAX."""
    values = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("limit", [str(LISTED)])
    given = ",".join(values)
    if not (given.isascii() and given.isdecimal() and len(given) < 9 and int(given) <= LISTED_MAX):
        raise DataError(f"limit must be a whole number of 0 to {LISTED_MAX}, not {given[:40]!r}")
    return int(given)


def encode_listing(listing: SequenceListing) -> bytes:
    """A listing as JSON: ``state`` is what a sequence is doing, times are in seconds."""
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
    """A listing from its document. Raises DataError when it is none."""
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
        raise DataError(f"it is no listing of sequences: {type(error).__name__}: {error}") from None


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
