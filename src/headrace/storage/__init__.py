"""Storage: URIs in, byte streams out, and objects written whole or not at all.

`Stores` gives the store for a URI; `Store` is what every one of them can do. All blocking, for threads.
"""

from headrace.storage.contract import ObjectInfo, Signing, Store, Writer
from headrace.storage.resolve import Stores
from headrace.storage.uri import absolute, join, name, parent

__all__ = ["ObjectInfo", "Signing", "Store", "Stores", "Writer", "absolute", "join", "name", "parent"]
