"""`recalld doctor`: looks at everything a daemon needs, one thing after the other, and says what to do about each."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from recalld import config as configuration
from recalld.core.words import ANALYSER
from recalld.edge import caller, files, service_unit
from recalld.edge.embedders import make_embedder
from recalld.edge.inspection import Record, opened_record, word_index
from recalld.edge.migrations import MIGRATIONS
from recalld.edge.nng import PATH_BYTES_MAX
from recalld.edge.vectors import Snapshot
from recalld.errors import AlreadyRunningError, ConfigError, EmbedderError, NotRunningError, RecalldError, StorageError

DISK_BYTES_WARN = 1 << 30  # a snapshot is written beside the one before: 0.6 kB for each memory, twice
DISK_BYTES_MIN = 64 << 20  # the WAL and one merge of a word index
JOURNAL_HOURS_WARN = 24.0  # a turn closes after half an hour without a sign of life
ENDPOINTS = ("events", "context", "rpc")
RESTORE = "restore recalld.db from a backup, or move it away and start with an empty one"

Outcome = Literal["ok", "warn", "fail"]


class Check(Struct, omit_defaults=True):
    """One thing: what was found, and what to do where it is not `ok`."""

    name: str
    outcome: Outcome
    detail: str
    remedy: str = ""


Found = Iterator[Check]


class Doctor:
    """`examine` gives one Check after the other, and never raises because of what it finds.

    With `repair`, index folders that are damaged are removed: they are derived from the record, and the next start makes
    them anew. The record itself is never touched.
    """

    def __init__(self, config_file: Path | None, flags: dict[str, Any], *, repair: bool) -> None:
        self._file = config_file
        self._flags = flags
        self._repair = repair
        self._identity: str | None = None

    def examine(self) -> Found:
        """Raises AlreadyRunningError only: where a repair is asked for while a daemon runs."""
        try:
            config, origins = configuration.load_with_origins(self._file, self._flags)
        except ConfigError as e:
            yield Check("configuration", "fail", str(e), "correct it; without it nothing else can be looked at")
            return
        self._config = config
        if self._repair:
            self._refuse_while_running()
        path = configuration.chosen_file(self._file)
        place = f"{path}" if path.exists() else f"defaults (there is no {path})"
        yield Check("configuration", "ok", f"{place}; keys that are set: {len(origins)}")
        for name, look in (
            ("data folder", self._data_folder),
            ("disk", self._disk),
            ("model", self._model),
            ("database", self._database),
            ("runtime folder", self._runtime_folder),
            ("daemon", self._daemon),
            ("service", self._service),
        ):
            yield from _guarded(name, look)

    def _refuse_while_running(self) -> None:
        if self._holder() is not None:
            raise AlreadyRunningError(
                f"a daemon (pid {self._holder()}) uses {self._config.data_path}, and what it has open is not repaired:"
                " stop it (`systemctl --user stop recalld`), then run `recalld doctor --repair` again"
            )

    def _holder(self) -> str | None:
        """The pid of the daemon that has the data folder; None if there is none, or no telling."""
        try:
            with self._locked():
                return None
        except AlreadyRunningError:
            return (self._config.data_path / "lock").read_text().strip() or "unknown"

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Keeps a daemon from starting meanwhile; gives False where there is no folder, or no right to it, and so no
        daemon of ours either. Raises AlreadyRunningError."""
        with ExitStack() as stack:
            held = False
            with suppress(OSError):
                stack.enter_context(files.locked(self._config.data_path))
                held = True
            yield held

    # -- one thing each

    def _data_folder(self) -> Found:
        yield from _folder("data folder", self._config.data_path, "data_dir")

    def _disk(self) -> Found:
        place = _nearest(self._config.data_path)
        free = shutil.disk_usage(place).free
        detail = f"{free / (1 << 30):.1f} GiB free at {place}"
        if free < DISK_BYTES_MIN:
            yield Check("disk", "fail", detail, "free some: nothing can be written soon")
        elif free < DISK_BYTES_WARN:
            yield Check("disk", "warn", detail, "free some: snapshots of large indexes need room")
        else:
            yield Check("disk", "ok", detail)

    def _model(self) -> Found:
        started = time.perf_counter()
        try:
            embedder = make_embedder(self._config.embedder)
        except ConfigError as e:
            yield Check("model", "fail", str(e), "correct the configuration")
            return
        self._identity = f"{embedder.identity} {ANALYSER}"
        try:
            embedder.embed(["Is everything there?"])
        except EmbedderError as e:
            yield Check("model", "fail", str(e), "recall goes on with words until it answers")
        except Exception as e:  # of any of the libraries below it
            yield Check("model", "fail", f"{type(e).__name__}: {e}", "install recalld again: the model is part of it")
            return
        where = "asked" if embedder.remote else "loaded offline"
        yield Check("model", "ok", f"{embedder.identity}, {where} in {time.perf_counter() - started:.1f} s")

    def _database(self) -> Found:
        path = self._config.data_path / "recalld.db"
        if not path.exists():
            yield Check("database", "ok", "none yet; the first start makes it")
            return
        with opened_record(path) as record:
            damage = record.damage()
            size = f"{path.stat().st_size / (1 << 20):.1f} MiB"
            if damage is not None:
                yield Check("database", "fail", f"{path}: {damage}", RESTORE)
                return
            if record.is_empty():
                yield Check("database", "ok", "empty; the next start makes its tables")
                return
            yield Check("database", "ok", f"{path}, {size}, undamaged")
            done = record.migrations()
            yield _schema(done)
            if set(done) == set(range(1, len(MIGRATIONS) + 1)):  # the tables are as this version knows them
                yield _journal(record)
                yield from self._indexes(record)

    def _indexes(self, record: Record) -> Found:
        try:
            with self._locked() as held:
                self._repair = self._repair and held
                root = self._config.data_path / "index"
                known = record.namespaces()
                for namespace, count in known.items():
                    yield from self._index(record, namespace, count, root / files.folder_name(namespace))
                if not known:
                    yield Check("indexes", "ok", "nothing is stored yet")
        except AlreadyRunningError:
            yield Check(
                "indexes", "ok", "in use; the daemon checked them when it started. To compare them again, stop it first"
            )
            return
        if self._identity and (missing := record.underived(self._identity)):
            yield Check("indexes", "ok", f"{missing} memories have no vector of this model yet; the daemon makes them")

    def _index(self, record: Record, namespace: str, count: int, folder: Path) -> Found:
        name, words = f"words of {namespace}", folder / "lexical"
        if not words.exists():
            yield Check(name, "ok", f"{_memories(count)}; the next start makes the index")
        else:
            try:
                state, documents = word_index(words)
                expected = record.documents(namespace, state)
                if documents != expected:
                    raise ValueError(f"{_memories(documents)} where the record has {expected}")  # noqa: TRY301
            except (OSError, ValueError) as e:
                yield self._damaged(name, words, e)
            else:
                behind = "as in the record" if documents == count else f"of {count}; the next start catches up"
                yield Check(name, "ok", f"{_memories(documents)}, {behind}")
        name, vectors = f"vectors of {namespace}", folder / "vectors"
        if self._identity and (vectors / "snapshot.json").exists():
            try:
                header = Snapshot(vectors, self._identity).header
            except (OSError, ValueError) as e:
                yield self._damaged(name, vectors, e)
            else:
                yield Check(name, "ok", f"snapshot of {_memories(header.count)}, undamaged")

    def _damaged(self, name: str, folder: Path, e: OSError | ValueError) -> Check:
        why = f"{e.filename}: {e.strerror}" if isinstance(e, OSError) and e.strerror else str(e)
        if self._repair:
            shutil.rmtree(folder)
            return Check(name, "warn", f"{why}; {folder} was removed", "start the daemon: it is made anew")
        remedy = (
            "start the daemon, which mends what a crash left; if this stays, stop it and use `recalld doctor --repair`"
        )
        return Check(name, "fail", why, remedy)

    def _runtime_folder(self) -> Found:
        folder = self._config.runtime_path
        yield from _folder("runtime folder", folder, "runtime_dir")
        longest = max(len(os.fsencode(folder / f"{e}.ipc")) for e in ENDPOINTS)
        if longest > PATH_BYTES_MAX:
            detail = f"a socket's path in {folder} has {longest} bytes, the system takes {PATH_BYTES_MAX}"
            yield Check("sockets", "fail", detail, "set a shorter runtime_dir")
            return
        good: list[str] = []
        bad: list[Check] = []
        for path in (folder / f"{e}.ipc" for e in ENDPOINTS):
            try:
                found = path.lstat()
            except OSError:
                continue
            mode = stat.S_IMODE(found.st_mode)
            if not stat.S_ISSOCK(found.st_mode):
                remedy = "move it away, or set another runtime_dir"
                bad.append(Check("sockets", "fail", f"{path} is not a socket", remedy))
            elif mode & 0o077:
                bad.append(
                    Check("sockets", "fail", f"{path} has mode {mode:04o}: others can use it", "restart the daemon")
                )
            else:
                good.append(path.name)
        yield from bad
        if good and not bad:
            yield Check("sockets", "ok", f"{', '.join(good)}; only for you")

    def _daemon(self) -> Found:
        holder = self._holder()
        started = time.perf_counter()
        try:
            with caller.daemon(self._config.runtime_path) as client:
                status = client.status()
                client_ms = (time.perf_counter() - started) * 1000
        except NotRunningError as e:
            if holder is None:
                yield Check("daemon", "warn", "it does not run", "`systemctl --user start recalld`, or `recalld run`")
            else:
                problem, _, remedy = str(e).partition(": ")
                yield Check("daemon", "fail", f"pid {holder} runs, but {problem}", remedy)
            return
        version = status.get("daemon", {}).get("version")
        yield Check("daemon", "ok", f"version {version}, pid {holder or 'unknown'}, answers in {client_ms:.0f} ms")
        theirs = status.get("data_dir")
        if theirs and Path(theirs).expanduser() != self._config.data_path:
            detail = f"it uses {theirs}, this configuration says {self._config.data_path}"
            yield Check("daemon", "warn", detail, "restart it, or give this command its configuration")
        for fault in status.get("faults", []):
            yield Check("fault", "fail", str(fault), "see `journalctl --user -u recalld`")

    def _service(self) -> Found:
        path = service_unit.unit_path()
        if shutil.which("systemctl") is None:
            yield Check("service", "ok", "there is no systemd here; the daemon is started by something else")
            return
        unit = service_unit.read(path)
        if unit is None:
            detail = "not installed: the daemon does not start by itself"
            yield Check("service", "warn", detail, "`recalld service install`")
        elif service_unit.changed_by_hand(unit):
            yield Check("service", "ok", f"{path}, changed by hand")
        elif unit != service_unit.render(service_unit.exec_start(self._file)):
            detail = f"{path} is of another version, installation or configuration file"
            yield Check("service", "warn", detail, "`recalld service install` brings it up to date")
        else:
            yield Check("service", "ok", f"{path}")


def _guarded(name: str, look: Callable[[], Found]) -> Found:
    try:
        yield from look()
    except StorageError as e:
        problem, _, remedy = str(e).partition("; ")
        yield Check(name, "fail", problem, remedy or RESTORE)
    except RecalldError as e:
        yield Check(name, "fail", str(e))
    except Exception as e:  # whatever state things are in, the other checks are still worth having
        yield Check(name, "fail", f"{type(e).__name__}: {e}", "please report it, if the text above does not explain it")


def _memories(count: int) -> str:
    return f"{count} memory" if count == 1 else f"{count} memories"


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    return next(p for p in (path, *path.parents) if p.exists())


def _folder(name: str, path: Path, key: str) -> Found:
    try:
        found = path.stat()
    except FileNotFoundError:
        above = _nearest(path)
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            yield Check(name, "ok", f"{path} does not exist yet; the first start makes it")
        else:
            yield Check(name, "fail", f"{path} cannot be made: {above} cannot be written", f"set another {key}")
        return
    except OSError as e:
        yield Check(name, "fail", f"{path}: {e.strerror}", f"set another {key}")
        return
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        yield Check(name, "fail", f"{path} is not a folder", f"move it away, or set another {key}")
    elif found.st_uid != os.getuid():
        yield Check(name, "fail", f"{path} belongs to user {found.st_uid}, not to you", f"set a {key} of your own")
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Check(name, "fail", f"{path} cannot be written", f"`chmod 700 {path}`, or set another {key}")
    elif mode & 0o077:
        yield Check(name, "warn", f"{path} has mode {mode:04o}: others can look into it", f"`chmod 700 {path}`")
    else:
        yield Check(name, "ok", f"{path}, only for you")


def _schema(done: dict[int, str]) -> Check:
    highest = max(done, default=0)
    if highest > len(MIGRATIONS):
        detail = f"version {highest}, made by a newer recalld; this one knows {len(MIGRATIONS)}"
        return Check("schema", "fail", detail, "upgrade recalld, or use another data_dir")
    for number, script in enumerate(MIGRATIONS[:highest], 1):
        if done.get(number) != hashlib.sha256(script.encode()).hexdigest():
            return Check("schema", "fail", f"step {number} is not this recalld's", RESTORE)
    if highest < len(MIGRATIONS):
        return Check("schema", "ok", f"version {highest}; the next start brings version {len(MIGRATIONS)} to it")
    return Check("schema", "ok", f"version {highest}")


def _journal(record: Record) -> Check:
    count, oldest_ms = record.journal()
    if not count:
        return Check("journal", "ok", "empty: every turn that closed is stored")
    hours = (time.time() * 1000 - oldest_ms) / 3_600_000
    detail = f"{count} events of turns that are not stored yet, the oldest {hours:.1f} h old"
    if hours > JOURNAL_HOURS_WARN:
        return Check("journal", "warn", detail, "start the daemon: it takes them up")
    return Check("journal", "ok", detail)
