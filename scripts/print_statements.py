"""Print the SQL statements of the job ledger as one database receives them, for reading and EXPLAIN.

``python scripts/print_statements.py postgresql claim`` prints ``claim``; without names, every statement.
"""

import sys

from headrace.jobs.ledgers.database import QUERIES, read_statement


def main() -> None:
    """Print the statements named on the command line."""
    dialect, *names = sys.argv[1:] or ["postgresql"]
    for name in names or sorted(path.stem for path in QUERIES.glob("*.sql")):
        print(f"-- {name}\n{getattr(read_statement(name), dialect)};\n")


if __name__ == "__main__":
    main()
