"""Errors after which a process cannot use its accelerator any more, recognized by their texts.

CUDA and HIP return such an error from every later call of the process, until the process ends.
Libraries raise it with different types (torch.AcceleratorError, onnxruntime's Fail, XlaRuntimeError,
cupy's CUDARuntimeError), but with the same text of the driver.
"""

import re
from typing import Final

from headrace.core.errors import InstanceLostError, PredictorError

# The errors of which NVIDIA's runtime API says that the process must be terminated, and their equals
# of HIP. Others, such as "invalid configuration argument", concern one call only.
_BROKEN: Final = re.compile(
    r"device-side assert"
    r"|\b(?:cuda|cudnn|cublas|hip)[^\n]*(?:"
    r"illegal memory access|unspecified launch failure|launch timed out|illegal instruction"
    r"|hardware stack error|misaligned address|operation not supported on global/shared address space"
    r"|invalid program counter|uncorrectable (?:ecc|nvlink) error|context is destroyed|unknown error)"
    r"|\b(?:cuda|cudnn|cublas|cufft|miopen|hipblas|rocblas)_(?:status_)?execution_failed"
    r"|error_device_lost",
    re.IGNORECASE,
)


def is_device_broken(error: BaseException) -> bool:
    """Return True if the text of an error says that this process cannot use a device any more.

    Errors of remote endpoints and of other instances are about devices of other processes.
    """
    if isinstance(error, (InstanceLostError, PredictorError)):
        return False
    try:
        return _BROKEN.search(str(error)) is not None
    except Exception:  # noqa: BLE001 - a broken __str__ tells nothing
        return False
