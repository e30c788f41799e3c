"""The command line: parses, calls `headrace.app`, shows. It decides nothing."""

from headrace.cli.main import main

__all__ = ["main"]
