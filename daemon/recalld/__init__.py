"""recalld, the recall daemon: a memory for AI agents that runs beside the gateway, never inside it."""

__version__ = "0.1.0"
