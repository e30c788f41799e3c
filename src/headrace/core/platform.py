"""The operating systems that headrace runs on."""

from typing import Final

WINDOWS_REFUSAL: Final = "headrace runs on Linux, and on macOS for development: on Windows, run it in WSL"
