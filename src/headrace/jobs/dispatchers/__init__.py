"""Dispatchers over message brokers: each a door to one client library, all over one way of announcing and listening."""
