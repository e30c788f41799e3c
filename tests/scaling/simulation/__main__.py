"""Print the comparison of autoscalers as a table in Markdown: ``python tests/scaling/simulation``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from scaling.simulation import table


def main() -> None:
    """Print the table."""
    sys.stdout.write(table.markdown(table.run_all()) + "\n")


if __name__ == "__main__":
    main()
