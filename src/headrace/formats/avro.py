"""The fastavro adapter (extra `avro`). pyarrow does not read Avro."""

from typing import Any, cast

from headrace.core.errors import MissingExtraError

try:
    import fastavro as fastavro_module
except ImportError as error:
    raise MissingExtraError("avro", "reading Avro files") from error

# The types of fastavro are incomplete; Any is confined to this name.
fastavro: Any = cast("Any", fastavro_module)
