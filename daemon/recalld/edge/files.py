"""Folders, locks, tokens, atomic files and daily notes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from recalld.errors import AlreadyRunningError, FolderError

# Looked through for an anchor: a section that is there and not known to be can only be of the last round of notes. Of the
# whole file, each of a day's ten thousand turns would read all those before it.
NOTE_TAIL_BYTES = 1024 * 1024

_SAFE = re.compile(r"[^A-Za-z0-9._-]+")


def own_folder(path: Path, what: str) -> Path:
    """Create or check a folder that only its owner can enter (0700). Raises FolderError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if status.st_uid != os.getuid():
            raise FolderError(f"{what} {path} belongs to another user: set a folder of your own")
        if stat.S_IMODE(status.st_mode) & 0o077:
            if any(path.iterdir()):  # it may be somebody's home, given by mistake
                raise FolderError(f"{what} {path} can be entered by others: `chmod 700 {path}`, or set another folder")
            path.chmod(0o700)
        probe = path / f".probe-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as e:
        raise FolderError(
            f"{what} {path} cannot be written: {e.strerror}. Correct its permissions, or set another folder"
        ) from None
    return path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: one daemon for one folder. Raises AlreadyRunningError naming the holder's pid."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            raise AlreadyRunningError(
                f"another recalld (pid {pid}) uses {folder}: stop it, or give this one a data_dir of its own"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file as a whole: after a crash it is the old one or the new one. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def checksum(path: Path) -> str:
    """blake2b of a file's content, in hexadecimal. Raises OSError."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def make_token(path: Path) -> str:
    """A new token in a 0600 file, at each start of the daemon."""
    token = secrets.token_urlsafe(32)
    write_atomic(path, token.encode() + b"\n")
    return token


def folder_name(name: str) -> str:
    """A file name for any string: readable, and different for different strings."""
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{_SAFE.sub('_', name).lstrip('.')[:40]}-{digest}"


def note_path(folder: Path, at_ms: int) -> Path:
    """The daily note of a moment, by the local date."""
    return folder / f"{datetime.fromtimestamp(at_ms / 1000).astimezone():%Y-%m-%d}.md"


def append_note(path: Path, anchor: str, heading: str, lines: list[str]) -> None:
    """Append one section to a daily note, once: a section whose anchor is there already is left alone. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "ab") as f:
        size = os.fstat(fd).st_size
        tail = os.pread(fd, NOTE_TAIL_BYTES, max(0, size - NOTE_TAIL_BYTES))
        if anchor.encode("utf-8", "replace") in tail:
            return
        start = "" if size else f"# {path.stem}\n"
        gap = "" if tail.endswith(b"\n") or not size else "\n"
        f.write((gap + start + "\n".join(["", heading, anchor, *lines, ""])).encode("utf-8", "replace"))
