"""The benchmarks are scripts, not a package: their folders are on the path, as in their own runs."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# At the end, so that plain names such as `measure` and `rows` hide no other module.
sys.path += [str(BENCHMARKS), *(str(BENCHMARKS / name) for name in ("transform", "serving", "jobs"))]
