"""The configuration: one frozen struct with every default. Flag > environment > file > default.

The file is TOML; `systemd/recalld.example.toml` shows every key with its default, and a test loads it.
An environment variable is `RECALLD_` and the key's path with double underscores between: `RECALLD_RECALL__FLOOR=0.6`.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import platformdirs
from msgspec import Meta, Struct, field

from recalld.core import styles
from recalld.core.gates import GateSettings
from recalld.core.pack import RecallSettings
from recalld.core.turn import Milliseconds, TurnSettings
from recalld.errors import ConfigError

ENV_PREFIX = "RECALLD_"
ENV_FILE = "RECALLD_CONFIG"

Port = Annotated[int, Meta(ge=0, le=65_535)]


class NoteConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Daily notes: in the agent's workspace (`workspace`), in the data folder (`data`), or none (`off`)."""

    place: Literal["workspace", "data", "off"] = "workspace"


class RpcConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`tcp_port` 0: no TCP."""

    tcp_host: str = "127.0.0.1"
    tcp_port: Port = 0
    contexts: Annotated[int, Meta(ge=1, le=256)] = 16


class IndexConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`commit_ms`: how long new memories wait for the word index. `snapshot_items`: vectors newer than the snapshot that
    make a new one worth its minutes."""

    commit_ms: Annotated[int, Meta(ge=10, le=900)] = 500
    snapshot_items: Annotated[int, Meta(ge=16, le=1_000_000)] = 8_192
    snapshot_threads: Annotated[int, Meta(ge=1, le=64)] = 1


class RecallLogConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The log of answered prompts, for `recalld explain`: the `keep` newest of the last `days`. Turned off, what it held
    is deleted."""

    enabled: bool = True
    keep: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    days: Annotated[int, Meta(ge=1, le=3_650)] = 7


class EmbedderConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`static`: wordllama. `onnx`: the model of the folder `model_path`, "" for the one that the extra brings. `openai`:
    `model` of the server at `base_url`; `api_key` is `env:NAME` or `file:PATH`; `dimensions` 0: the model's own.

    `timeout_ms`: a question's vector is waited for so long, and never beyond the question's own deadline. `retry_ms`: a
    server that failed is left alone for so long.
    """

    kind: Literal["static", "onnx", "openai"] = "static"
    model_path: str = ""
    base_url: str = "http://127.0.0.1:11434/v1"
    model: Annotated[str, Meta(max_length=256)] = ""
    api_key: Annotated[str, Meta(pattern=r"^$|^(env|file):.")] = ""
    dimensions: Annotated[int, Meta(ge=0, le=8_192)] = 0
    timeout_ms: Annotated[int, Meta(ge=10, le=60_000)] = 1_000
    retry_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 30_000


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """`shared` maps an agent to a namespace that several agents use together."""

    data_dir: str = ""
    runtime_dir: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    drain_ms: Milliseconds = 20_000
    shared: dict[str, str] = field(default_factory=dict)
    turns: TurnSettings = TurnSettings()
    gates: GateSettings = GateSettings()
    recall: RecallSettings = RecallSettings()
    recall_log: RecallLogConfig = RecallLogConfig()
    notes: NoteConfig = NoteConfig()
    rpc: RpcConfig = RpcConfig()
    index: IndexConfig = IndexConfig()
    embedder: EmbedderConfig = EmbedderConfig()

    @property
    def data_path(self) -> Path:
        return Path(self.data_dir).expanduser()

    @property
    def runtime_path(self) -> Path:
        return Path(self.runtime_dir).expanduser()

    def address(self, endpoint: str) -> str:
        """The ipc address of `events`, `context` or `rpc`."""
        return f"ipc://{self.runtime_path / endpoint}.ipc"

    @property
    def rpc_tcp_address(self) -> str | None:
        if not self.rpc.tcp_port:
            return None
        host = f"[{self.rpc.tcp_host}]" if ":" in self.rpc.tcp_host else self.rpc.tcp_host
        return f"tcp://{host}:{self.rpc.tcp_port}"


# What a running daemon takes up on SIGHUP; all else needs a restart.
RELOADABLE = ("log_level", "gates", "recall", "recall_log", "notes", "drain_ms")


def default_file() -> Path:
    return Path(platformdirs.user_config_dir("recalld")) / "recalld.toml"


def default_runtime_dir(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return str(Path(base) / "recalld")


def load(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """The effective configuration. Raises ConfigError naming the key, where it was set, and what is allowed."""
    return load_with_origins(file, flags, environ)[0]


def load_with_origins(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Config, dict[str, str]]:
    """As `load`; and by the path of each key that is not at its default, where it was set."""
    env = os.environ if environ is None else environ
    path = chosen_file(file, env)
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    given = [(_nested(k.split("."), v), f"--{k.replace('_', '-')}") for k, v in (flags or {}).items() if v is not None]
    must_exist = file is not None or bool(env.get(ENV_FILE))
    for layer, origin in ((_read(path, must_exist=must_exist), f"file {path}"), *_from_environ(env), *given):
        _merge(tree, layer)
        origins.update((key, origin) for key, _ in flat(layer))
    tree["data_dir"] = tree.get("data_dir") or platformdirs.user_data_dir("recalld")
    tree["runtime_dir"] = tree.get("runtime_dir") or default_runtime_dir(env)
    try:
        config = msgspec.convert(tree, Config, strict=False)
    except msgspec.ValidationError as e:
        raise ConfigError(_explain(str(e), origins)) from None
    return _styled(_checked(config), origins), origins


def changed_recall(config: Config, changes: Mapping[str, Any], origin: str) -> RecallSettings:
    """The settings of recall with some of them changed. A style that is among them sets anew what styles set and what is
    not among them. Raises ConfigError as `load` does."""
    values = msgspec.to_builtins(config)
    if "style" in changes:
        for name in styles.SET:
            del values["recall"][name]
    _merge(values, {"recall": dict(changes)})
    try:
        recall = _checked(msgspec.convert(values, Config, strict=False)).recall
    except msgspec.ValidationError as e:
        raise ConfigError(_explain(str(e), {f"recall.{key}": origin for key, _ in flat(changes)})) from None
    return styles.resolve(recall, changes) if "style" in changes else recall


def recall_settings(assignments: Iterable[str]) -> dict[str, Any]:
    """The part under `recall` of assignments such as `recall.floor=0.4`, unchecked. Raises ConfigError."""
    tree: dict[str, Any] = {}
    for assignment in assignments:
        key, given, value = assignment.partition("=")
        first, _, rest = key.strip().partition(".")
        if not given or first != "recall" or not rest:
            raise ConfigError(
                f"{assignment!r} sets no key of [recall]: write it as recall.KEY=VALUE, as recall.floor=0.4"
            )
        _merge(tree, _nested(rest.split("."), _parsed(value.strip())))
    return tree


def chosen_file(file: Path | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """The file that is read: the one given, else that of the environment, else the usual one."""
    env = os.environ if environ is None else environ
    return file or (Path(env[ENV_FILE]) if env.get(ENV_FILE) else default_file())


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path of a key, value) of all that is in a tree of tables."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read(path: Path, *, must_exist: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(f"the configuration file {path} does not exist: name another, or leave it out") from None
        return {}
    except OSError as e:
        raise ConfigError(f"the configuration file {path} cannot be read: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"the configuration file {path} is not TOML: {e}") from None


def _from_environ(env: Mapping[str, str]) -> Iterator[tuple[dict[str, Any], str]]:
    for name, value in sorted(env.items()):
        if name.startswith(ENV_PREFIX) and name != ENV_FILE:
            keys = name.removeprefix(ENV_PREFIX).lower().split("__")
            yield _nested(keys, _parsed(value)), f"environment {name}"


def _parsed(value: str) -> Any:
    """Lists and tables in TOML's notation; everything else as text, which the types then convert."""
    if value.startswith(("[", "{")):
        try:
            return tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            return value
    return value


def _nested(keys: list[str], value: Any) -> dict[str, Any]:
    tree: Any = value
    for key in reversed(keys):
        tree = {key: tree}
    return dict(tree)


def _merge(into: dict[str, Any], tree: dict[str, Any]) -> None:
    for key, value in tree.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _explain(text: str, origins: Mapping[str, str]) -> str:
    """msgspec's message as ours: the key by its path and origin, and the nearest known one where it is unknown."""
    head, _, where = text.partition(" - at ")
    place = where.strip("`").removeprefix("$").lstrip(".")
    unknown = re.search(r"unknown field `([^`]*)`", head)
    key = f"{place}.{unknown[1]}".lstrip(".") if unknown else place
    bare = key.partition("[")[0]
    origin = origins.get(bare) or next((o for k, o in origins.items() if k.startswith(f"{bare}.")), "configuration")
    if unknown:
        near = difflib.get_close_matches(key, _keys(Config), n=1)
        hint = f"; did you mean `{near[0]}`?" if near else "; `recalld config show` lists all keys"
        return f"unknown configuration key `{key}` ({origin}){hint}"
    return f"configuration key `{key}` ({origin}): {head}"


def _keys(kind: type[Struct], prefix: str = "") -> list[str]:
    found = []
    for f in msgspec.structs.fields(kind):
        name = f"{prefix}{f.name}"
        found.append(name)
        if isinstance(f.type, type) and issubclass(f.type, Struct):
            found.extend(_keys(f.type, f"{name}."))
    return found


def _styled(config: Config, origins: dict[str, str]) -> Config:
    """With the recall style in its settings; what it set has the style as its origin."""
    chosen = {key.removeprefix("recall.") for key in origins if key.startswith("recall.")}
    styled = styles.resolve(config.recall, chosen)
    for name in RecallSettings.__struct_fields__:
        if getattr(styled, name) != getattr(config.recall, name):
            origins[f"recall.{name}"] = f"style {config.recall.style or 'of recall.query_mode'}"
    return msgspec.structs.replace(config, recall=styled)


def _checked(config: Config) -> Config:
    for pattern in config.gates.control_patterns:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as e:
            raise ConfigError(
                f"`gates.control_patterns` has {pattern!r}, which is no regular expression: {e}. Correct it or take it out"
            ) from None
    if config.rpc.tcp_port:
        try:
            loopback = ipaddress.ip_address(config.rpc.tcp_host).is_loopback
        except ValueError:
            raise ConfigError(
                f"`rpc.tcp_host` is {config.rpc.tcp_host!r}: write an IP address, such as 127.0.0.1"
            ) from None
        if not loopback:
            raise ConfigError(
                f"`rpc.tcp_host` is {config.rpc.tcp_host}, which other machines can reach: only loopback"
                " (127.0.0.1, ::1) is served. Forward the port over ssh to use it from elsewhere"
            )
    for key, value in (("data_dir", config.data_dir), ("runtime_dir", config.runtime_dir)):
        if not Path(value).expanduser().is_absolute():
            raise ConfigError(f"`{key}` is {value!r}: write an absolute path")
    return config
