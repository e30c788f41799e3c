"""The command line: parses arguments, calls `headrace.app` and prints the results."""

from headrace.cli.main import main

__all__ = ["main"]
