"""headrace keeps a model supplied: streams over object storage in, predictions out, nothing lost.

This module is the public face. Importing it imports numpy and `headrace.core`, nothing more.
"""

from headrace.core import (
    Block,
    Failure,
    FailureKind,
    HeadraceError,
    InferRequest,
    InferResponse,
    Model,
    Outcome,
    Position,
    Prediction,
    RowError,
    Tensor,
    TensorSpec,
)

__version__ = "0.1.0.dev0"
