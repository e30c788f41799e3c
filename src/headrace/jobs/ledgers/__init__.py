"""Job ledgers in SQL: one implementation for SQLite and PostgreSQL.

`open_ledger` opens the one at a URL.
"""
