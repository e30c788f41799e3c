"""Object storage: byte streams by URI, and objects that are written completely or not at all.

`Stores` maps a URI to its store; `Store` is the contract of every store. The API blocks; it is
meant for threads.
"""

from headrace.storage.contract import ObjectInfo, Store, UrlSigner, Writer
from headrace.storage.resolve import Stores
from headrace.storage.uri import absolute, join, name, parent

__all__ = ["ObjectInfo", "Store", "Stores", "UrlSigner", "Writer", "absolute", "join", "name", "parent"]
