"""Errors of broken devices, by the texts that libraries raise."""

import pytest

from headrace.core.errors import EndpointUnavailableError, InstanceLostError
from headrace.core.model import Model, is_device_broken

BROKEN = [
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: unspecified launch failure",
    "CUDA error: the launch timed out and was terminated",
    "CUDA error: misaligned address",
    "CUDA error: uncorrectable ECC error encountered",
    "CUDA error: unknown error",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb)`",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "HIP error: an illegal memory access was encountered",
    "HIP error: unspecified launch failure",
    "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 710: device-side assert triggered ; GPU=0 ; hostname=h",
    "CUDNN failure 8: CUDNN_STATUS_EXECUTION_FAILED ; GPU=0",
    "CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED ; GPU=0",
    "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
    "cudaErrorIllegalAddress: an illegal memory access was encountered",
    "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
]
WORKING = [
    "",
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB",
    "CUDA error: out of memory",
    "CUDA error: invalid configuration argument",
    "CUDA error: no kernel image is available for execution on the device",
    "CUDA error: invalid device ordinal",
    "CUDA failure 2: out of memory ; GPU=0 ; hostname=h",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
    "index 7 is out of range for an Embedding of 5 rows",
    "misaligned address in the header of the file",
    "unknown error",
]


@pytest.mark.parametrize("text", BROKEN)
def test_text_of_broken_device_is_recognized(text):
    assert is_device_broken(RuntimeError(text))
    assert Model().is_unrecoverable(Exception(text))


@pytest.mark.parametrize("text", WORKING)
def test_other_errors_leave_device_working(text):
    assert not is_device_broken(RuntimeError(text))


def test_error_of_remote_device_is_not_ours():
    assert not is_device_broken(EndpointUnavailableError("http://gpu", BROKEN[0]))
    assert not is_device_broken(InstanceLostError("m", BROKEN[0]))


def test_error_without_text_is_not_recognized():
    class BrokenError(Exception):
        def __str__(self):
            raise ValueError

    assert not is_device_broken(BrokenError())
