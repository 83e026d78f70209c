"""Configuration: where a value comes from, what is refused and how, and that the example file shows the truth."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recalld import config
from recalld.config import Config
from recalld.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "systemd" / "recalld.example.toml"


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the configuration of whoever runs it."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


def written(folder: Path, text: str) -> Path:
    path = folder / "recalld.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(file: Path | None = None, environ: dict[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config.load(file, flags, environ or {})
    assert caught.value.exit_code == 2
    return str(caught.value)


# -- where a value comes from


def test_flag_goes_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file = written(tmp_path, 'log_level = "error"\n[recall]\nfloor = 0.1\nitems_max = 1\n')
    environ = {"RECALLD_LOG_LEVEL": "warning", "RECALLD_RECALL__FLOOR": "0.2"}

    loaded, origins = config.load_with_origins(file, {"log_level": "debug", "data_dir": None}, environ)

    assert (loaded.log_level, loaded.recall.floor, loaded.recall.items_max) == ("debug", 0.2, 1)
    assert loaded.recall.tokens_max == Config().recall.tokens_max
    assert origins == {
        "log_level": "--log-level",
        "recall.floor": "environment RECALLD_RECALL__FLOOR",
        "recall.items_max": f"file {file}",
    }


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    loaded, origins = config.load_with_origins(environ={"XDG_RUNTIME_DIR": "/run/user/7"})
    assert origins == {}
    assert loaded.runtime_dir == "/run/user/7/recalld"
    assert loaded.data_dir == str(tmp_path / "home/.local/share/recalld")
    assert msgspec.structs.replace(loaded, data_dir="", runtime_dir="") == Config()


def test_the_usual_file_is_read(tmp_path: Path) -> None:
    usual = config.default_file()
    assert usual == tmp_path / "home/.config/recalld/recalld.toml"
    usual.parent.mkdir(parents=True)
    usual.write_text("drain_ms = 7\n")
    assert config.load(environ={}).drain_ms == 7


def test_the_environment_names_the_file_and_a_flag_goes_before_it(tmp_path: Path) -> None:
    file = written(tmp_path, "drain_ms = 7\n")
    other = tmp_path / "other.toml"
    other.write_text("drain_ms = 8\n")
    assert config.load(environ={"RECALLD_CONFIG": str(file)}).drain_ms == 7
    assert config.load(other, environ={"RECALLD_CONFIG": str(file)}).drain_ms == 8


def test_lists_and_tables_in_the_environment() -> None:
    loaded = config.load(
        environ={
            "RECALLD_GATES__AGENTS": '["main", "gardener"]',
            "RECALLD_GATES__CHAT_TYPES": "[]",
            "RECALLD_SHARED": '{ alice = "home", bob = "home" }',
            "RECALLD_GATES__CAPTURE": "false",
            "RECALLD_RECALL__DIRECTIVES": '[{ when = { keywords = ["tea"] }, then = { entity = "Ada" } }]',
            "RECALLD_RECALL__SOURCE_PRIORS": '{ "*.tmp" = -0.3 }',
        }
    )
    assert loaded.gates.agents == ("main", "gardener")
    assert loaded.gates.chat_types == ()
    assert loaded.shared == {"alice": "home", "bob": "home"}
    assert loaded.gates.capture is False
    assert loaded.recall.directives[0].then.entity == "Ada"
    assert loaded.recall.source_priors == {"*.tmp": -0.3}


def test_folders_may_start_at_home(tmp_path: Path) -> None:
    loaded = config.load(environ={"RECALLD_DATA_DIR": "~/memories"})
    assert loaded.data_path == tmp_path / "home/memories"


# -- what is refused


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("[recall]\nflor = 0.5\n", "`recall.flor`", "`recall.floor`"),
        ('log_levle = "info"\n', "`log_levle`", "`log_level`"),
        ("[recal]\nfloor = 0.5\n", "`recal`", "`recall`"),
    ],
)
def test_an_unknown_key_is_named_with_its_place_and_the_nearest(tmp_path: Path, text: str, key: str, near: str) -> None:
    file = written(tmp_path, text)
    message = refusal(file)
    assert f"unknown configuration key {key} (file {file})" in message
    assert f"did you mean {near}?" in message


def test_an_unknown_key_that_resembles_none(tmp_path: Path) -> None:
    message = refusal(environ={"RECALLD_ZZZ": "1"})
    assert message == (
        "unknown configuration key `zzz` (environment RECALLD_ZZZ); `recalld config show` lists all keys"
    )


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("RECALLD_DRAIN_MS", "soon", "drain_ms"),
        ("RECALLD_DRAIN_MS", "0", "drain_ms"),
        ("RECALLD_RECALL__FLOOR", "4", "recall.floor"),
        ("RECALLD_RECALL", "3", "recall"),
        ("RECALLD_RECALL__FLOOR__X", "3", "recall.floor"),
        ("RECALLD_LOG_LEVEL", "loud", "log_level"),
        ("RECALLD_RPC__TCP_PORT", "65536", "rpc.tcp_port"),
        ("RECALLD_GATES__AGENTS", "main", "gates.agents"),
        ("RECALLD_GATES__AGENTS", "[1]", "gates.agents[0]"),
        ("RECALLD_GATES__AGENTS", "[", "gates.agents"),
        ("RECALLD_EMBEDDER__KIND", "magic", "embedder.kind"),
        ("RECALLD_EMBEDDER__DIMENSIONS", "100000", "embedder.dimensions"),
        ("RECALLD_EMBEDDER__TIMEOUT_MS", "0", "embedder.timeout_ms"),
        ("RECALLD_EMBEDDER__API_KEY", "sk-secret", "embedder.api_key"),
    ],
)
def test_a_wrong_value_names_the_key_and_where_it_was_set(name: str, value: str, key: str) -> None:
    assert refusal(environ={name: value}).startswith(f"configuration key `{key}` (environment {name}): ")


def test_a_key_that_was_written_down_is_not_shown() -> None:
    assert "sk-secret" not in refusal(environ={"RECALLD_EMBEDDER__API_KEY": "sk-secret"})


def test_a_wrong_flag_names_the_flag() -> None:
    assert refusal(log_level="loud").startswith("configuration key `log_level` (--log-level): ")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "2001:db8::1"])
def test_an_address_that_others_reach_is_refused(host: str) -> None:
    message = refusal(environ={"RECALLD_RPC__TCP_HOST": host, "RECALLD_RPC__TCP_PORT": "7000"})
    assert "`rpc.tcp_host`" in message
    assert "loopback" in message


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "tcp://127.0.0.1:7000"), ("::1", "tcp://[::1]:7000")])
def test_loopback_is_served(host: str, address: str) -> None:
    loaded = config.load(environ={"RECALLD_RPC__TCP_HOST": host, "RECALLD_RPC__TCP_PORT": "7000"})
    assert loaded.rpc_tcp_address == address


def test_a_host_name_is_refused() -> None:
    assert "write an IP address" in refusal(
        environ={"RECALLD_RPC__TCP_HOST": "localhost", "RECALLD_RPC__TCP_PORT": "7000"}
    )


@pytest.mark.parametrize("key", ["data_dir", "runtime_dir"])
def test_a_relative_folder_is_refused(key: str) -> None:
    message = refusal(environ={f"RECALLD_{key.upper()}": "somewhere/else"})
    assert f"`{key}`" in message
    assert "absolute" in message


def test_a_file_that_is_named_must_be_there_and_be_toml(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert str(missing) in refusal(missing)
    assert str(missing) in refusal(environ={"RECALLD_CONFIG": str(missing)})
    assert "is not TOML" in refusal(written(tmp_path, "= 3"))
    assert "cannot be read" in refusal(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert "is not TOML" in refusal(tmp_path / "bytes.toml")


@pytest.mark.parametrize("pattern", ["(oops", "a{99999999999999999999}", "(?<=a+)b"])
def test_a_pattern_that_is_no_regular_expression_is_named_with_its_key(pattern: str) -> None:
    message = refusal(environ={"RECALLD_GATES__CONTROL_PATTERNS": f"['(?i)beep.*', '{pattern}']"})
    assert f"`gates.control_patterns` has '{pattern}', which is no regular expression: " in message
    assert "Correct it" in message


@pytest.mark.parametrize("key", ["recent_user_chars", "recent_assistant_chars"])
def test_parts_of_a_query_are_bounded(key: str) -> None:
    assert f"`recall.{key}`" in refusal(environ={f"RECALLD_RECALL__{key.upper()}": "39"})
    assert f"`recall.{key}`" in refusal(environ={f"RECALLD_RECALL__{key.upper()}": "1001"})


# -- styles


def test_a_style_is_in_what_holds_and_is_the_origin_of_what_it_set(tmp_path: Path) -> None:
    loaded, origins = config.load_with_origins(written(tmp_path, '[recall]\nstyle = "strict"\n'), environ={})
    assert loaded.recall.floor > Config().recall.floor
    assert loaded.recall.items_max < Config().recall.items_max
    assert origins["recall.floor"] == origins["recall.items_max"] == "style strict"


def test_a_key_that_is_set_goes_before_the_style_even_at_its_default(tmp_path: Path) -> None:
    floor = Config().recall.floor
    file = written(tmp_path, f'[recall]\nstyle = "strict"\nfloor = {floor}\n')
    loaded, origins = config.load_with_origins(file, environ={})
    assert loaded.recall.floor == floor
    assert origins["recall.floor"] == f"file {file}"


def test_the_style_of_a_query_mode_is_told() -> None:
    loaded, origins = config.load_with_origins(environ={"RECALLD_RECALL__QUERY_MODE": "full"})
    assert loaded.recall.floor < Config().recall.floor
    assert origins["recall.floor"] == "style of recall.query_mode"


def test_an_unknown_style_is_refused() -> None:
    assert "`recall.style`" in refusal(environ={"RECALLD_RECALL__STYLE": "bold"})


def test_a_wrong_directive_or_prior_names_the_key_and_the_remedy() -> None:
    for value, text in (
        ("[{ when = {}, then = { query = 'x' } }]", "`when` is empty: give it keywords"),
        ("[{ when = { session_start = true }, then = { query = 'x', entity = 'y' } }]", "exactly one of query"),
    ):
        with pytest.raises(ConfigError, match=r"`recall\.directives\[") as caught:
            config.load(environ={"RECALLD_RECALL__DIRECTIVES": value})
        assert text in str(caught.value)
        assert "RECALLD_RECALL__DIRECTIVES" in str(caught.value)
    with pytest.raises(ConfigError, match=r"`recall\.source_priors"):
        config.load(environ={"RECALLD_RECALL__SOURCE_PRIORS": '{ "*.log" = -2.0 }'})


# -- the example file


def test_the_example_holds_every_key_at_its_default() -> None:
    example = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    defaults = msgspec.json.decode(msgspec.json.encode(Config()))
    assert dict(config.flat(example)) == dict(config.flat(defaults))
    assert example.keys() == defaults.keys()  # `shared`, which is empty, too


def test_the_example_loads() -> None:
    loaded = config.load(EXAMPLE, environ={})
    assert msgspec.structs.replace(loaded, data_dir="", runtime_dir="") == Config()


def test_the_example_explains_every_key() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    for before, line in itertools.pairwise(lines):
        if "=" in line and not line.startswith("#"):
            assert before.startswith("# "), line


def test_the_example_says_what_a_reload_takes_up() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    said: set[str] = set()
    table = ""
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("["):
            table = line[1:].partition("]")[0]
        if "(reload)" in (line if line.startswith("[") else before if "=" in line else ""):
            said.add(table or line.partition(" ")[0])
    assert said == set(config.RELOADABLE)
