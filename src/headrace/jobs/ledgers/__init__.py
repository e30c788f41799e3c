"""Job ledgers in SQL: one implementation, on SQLite and on PostgreSQL. `open_ledger` finds the one that a URL names."""
