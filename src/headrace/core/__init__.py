"""The shared types of every package: records, requests, models, predictors and errors.

No module here reads a clock, waits, or opens anything. `core.clock` is the only access to time.
"""

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.call import current_call
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError
from headrace.core.handle import HandleRequest, HandleResponse
from headrace.core.model import Model, ModelRecipe, RowError
from headrace.core.outcome import Outcome, Prediction
from headrace.core.predictor import Predictor
from headrace.core.sequence import SequenceEnd, SequenceLimits, SequenceState, States, UndoneStep
from headrace.core.service import Service
from headrace.core.tensor import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RowFailure,
    Tensor,
    TensorSpec,
)

__all__ = [
    "Block",
    "Clock",
    "Failure",
    "FailureKind",
    "HandleRequest",
    "HandleResponse",
    "HeadraceError",
    "InferRequest",
    "InferResponse",
    "Model",
    "ModelMetadata",
    "ModelRecipe",
    "Outcome",
    "Position",
    "Prediction",
    "Predictor",
    "RowError",
    "RowFailure",
    "SequenceEnd",
    "SequenceLimits",
    "SequenceState",
    "Service",
    "States",
    "SystemClock",
    "Tensor",
    "TensorSpec",
    "UndoneStep",
    "current_call",
]
