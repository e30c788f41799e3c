"""headrace runs model inference: over streams, for requests, as jobs and as batch transforms.

This module is the public API. Importing it imports numpy and `headrace.core` only.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.core import (
    Block,
    Failure,
    FailureKind,
    HandleRequest,
    HandleResponse,
    HeadraceError,
    InferRequest,
    InferResponse,
    Model,
    Outcome,
    Position,
    Prediction,
    RowError,
    SequenceEnd,
    SequenceLimits,
    SequenceState,
    States,
    Tensor,
    TensorSpec,
    UndoneStep,
    current_call,
)
from headrace.core.errors import WINDOWS_REFUSAL

if TYPE_CHECKING:
    from headrace.app.models import PredictorOptions as PredictorOptions
    from headrace.app.runners import DataRegions, Workers
    from headrace.app.runs import (
        TransformOutput,
        TransformReport,
        open_run,
        retry_failed,
        run,
        run_sync,
        transform,
        transform_sync,
    )
    from headrace.app.stream import stream
    from headrace.formats.read_options import ReadOptions
    from headrace.reports.report import Report
    from headrace.runners.engines import BeamWorkers, RayWorkers
    from headrace.runs.failure_policy import FailurePolicy
    from headrace.runs.output_settings import OutputSettings
    from headrace.runs.settings import (
        FlowSettings,
        MappingOptions,
        StreamSettings,
        SubsetSettings,
        TaskSettings,
        TransformSettings,
    )
    from headrace.storage.regions import RegionRules

__version__ = "0.1.0.dev0"

# Imported at first use: a model file's `import headrace` must stay cheap.
_LAZY_MODULES = {
    "BeamWorkers": "headrace.runners.engines",
    "DataRegions": "headrace.app.runners",
    "FailurePolicy": "headrace.runs.failure_policy",
    "FlowSettings": "headrace.runs.settings",
    "MappingOptions": "headrace.runs.settings",
    "OutputSettings": "headrace.runs.output_settings",
    "PredictorOptions": "headrace.app.models",
    "RayWorkers": "headrace.runners.engines",
    "ReadOptions": "headrace.formats.read_options",
    "RegionRules": "headrace.storage.regions",
    "Report": "headrace.reports.report",
    "StreamSettings": "headrace.runs.settings",
    "SubsetSettings": "headrace.runs.settings",
    "TaskSettings": "headrace.runs.settings",
    "TransformOutput": "headrace.app.runs",
    "TransformReport": "headrace.app.runs",
    "TransformSettings": "headrace.runs.settings",
    "Workers": "headrace.app.runners",
    "open_run": "headrace.app.runs",
    "retry_failed": "headrace.app.runs",
    "run": "headrace.app.runs",
    "run_sync": "headrace.app.runs",
    "stream": "headrace.app.stream",
    "transform": "headrace.app.runs",
    "transform_sync": "headrace.app.runs",
}

__all__ = [
    "BeamWorkers",
    "Block",
    "DataRegions",
    "Failure",
    "FailureKind",
    "FailurePolicy",
    "FlowSettings",
    "HandleRequest",
    "HandleResponse",
    "HeadraceError",
    "InferRequest",
    "InferResponse",
    "MappingOptions",
    "Model",
    "Outcome",
    "OutputSettings",
    "Position",
    "Prediction",
    "PredictorOptions",
    "RayWorkers",
    "ReadOptions",
    "RegionRules",
    "Report",
    "RowError",
    "SequenceEnd",
    "SequenceLimits",
    "SequenceState",
    "States",
    "StreamSettings",
    "SubsetSettings",
    "TaskSettings",
    "Tensor",
    "TensorSpec",
    "TransformOutput",
    "TransformReport",
    "TransformSettings",
    "UndoneStep",
    "Workers",
    "current_call",
    "open_run",
    "retry_failed",
    "run",
    "run_sync",
    "stream",
    "transform",
    "transform_sync",
]


def __getattr__(name: str) -> Any:
    """Import and return a lazy name of the public API. Raises ImportError on Windows."""
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    if sys.platform == "win32":
        raise ImportError(WINDOWS_REFUSAL)
    return getattr(import_module(_LAZY_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return all public names, imported or not."""
    return sorted(__all__)
