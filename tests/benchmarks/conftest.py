"""Benchmarks are scripts, not a package: for their tests their folders are on the path, as they are when they run."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Behind everything else, so that their plain names (`measure`, `rows`) hide nothing.
sys.path += [str(BENCHMARKS), *(str(BENCHMARKS / name) for name in ("transform", "serving", "jobs"))]
