"""What is used of Apache Beam, in one place. Importing it takes some seconds: Beam is large.

It imports without its extra `gcp`, but warns of BigQuery by `logging`, which is none of our business and left alone.
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
