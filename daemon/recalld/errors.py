"""Errors of the daemon itself: each names the thing and the remedy, and has an exit code of its own."""

from __future__ import annotations


class RecalldError(Exception):
    """Base. `str(e)` is a full sentence for a person: what is wrong with which thing, and what to do."""

    exit_code = 1


class ConfigError(RecalldError):
    """The configuration cannot be used."""

    exit_code = 2


class FolderError(RecalldError):
    """A folder or file cannot be used: not writable, wrong owner, in use by something else."""

    exit_code = 3


class AlreadyRunningError(RecalldError):
    """Another daemon has this data folder or these sockets."""

    exit_code = 4


class StorageError(RecalldError):
    """The database cannot be opened, read or written."""

    exit_code = 5


class BusError(RecalldError):
    """An endpoint cannot be opened or reached."""

    exit_code = 6


class NotRunningError(RecalldError):
    """No daemon answers."""

    exit_code = 7


class RefusedError(RecalldError):
    """The daemon answered that it would not, or could not."""

    exit_code = 8


class EmbedderError(RecalldError):
    """Texts cannot be embedded now. Recall goes on with words, and what is stored waits for its vector."""

    exit_code = 9
