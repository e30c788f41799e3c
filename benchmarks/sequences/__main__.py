"""`make bench-sequences`: models whose answer depends on the last one, beside what their calls alone allow, in one run, as ratios.

    python benchmarks/sequences [SECTION...] [--pairs 3] [--seconds 2] [--json]

Sections: full, neighbours, overhead, lone; all when none is named. Figures (`sequences.json`) are in `bench-results/`. Exits with 1
when a promise is not kept, and with 2 when an answer is wrong.
"""

import sys
from pathlib import Path

# What benchmarks share is next door; servers are run as the serving benchmark runs them.
HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent), str(HERE.parent / "serving")]


def main() -> int:
    from sequence_suite import run

    return run(__doc__)


if __name__ == "__main__":
    sys.exit(main())
