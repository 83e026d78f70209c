"""Client of recalld, the recall daemon: emit what happens, get what matters before the deadline.

Standard library only. `Client` is for asyncio, `SyncClient` for everything else; both have the same calls.
"""

from .client import Client, default_runtime_dir
from .messages import Recall, RecalldError, RecalldUnavailable
from .sync import SyncClient

__all__ = ["Client", "Recall", "RecalldError", "RecalldUnavailable", "SyncClient", "default_runtime_dir"]
