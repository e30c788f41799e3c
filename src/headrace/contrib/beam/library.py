"""The only module that imports Apache Beam. The import takes some seconds: Beam is large.

Beam without its extra `gcp` logs a warning about BigQuery. headrace does not suppress it.
"""

from typing import Any

from headrace.core.errors import MissingExtraError

try:
    import apache_beam as _beam
    from apache_beam.ml.inference import base as _base
except ImportError as _error:
    raise MissingExtraError("beam", "Apache Beam's RunInference") from _error

beam: Any = _beam
base: Any = _base
