"""Wakeup brokers over message brokers: one adapter module per client library."""
