"""The clients of the job API: `Client` for threads, `AsyncClient` for event loops."""

from headrace.jobs.client.aio import AsyncClient
from headrace.jobs.client.sync import Client
from headrace.jobs.client.transport import ClientSettings

__all__ = ["AsyncClient", "Client", "ClientSettings"]
