"""The command line: parses arguments, calls `headrace.app` and prints the results."""

import sys

from headrace.core.errors import WINDOWS_REFUSAL

if sys.platform == "win32":
    # Here, since the commands import modules that Windows does not have.
    sys.exit(WINDOWS_REFUSAL)

from headrace.cli.main import main

__all__ = ["main"]
