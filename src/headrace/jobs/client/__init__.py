"""The job API's clients, for threads and for event loops."""

from headrace.jobs.client.aio import AsyncClient
from headrace.jobs.client.calls import ClientSettings
from headrace.jobs.client.sync import Client

__all__ = ["AsyncClient", "Client", "ClientSettings"]
