"""Embeddings of a server that speaks OpenAI's protocol: Ollama, LM Studio, llama.cpp, OpenAI.

With the standard library: the `openai` client took 44 MiB and 0.8 s to import, for one request whose whole time it does
not bound (its timeouts are by read). Here a request ends by its deadline, and an answer has a greatest size.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np
from msgspec import Struct

from recalld.config import EmbedderConfig
from recalld.edge.embed import TEXT_CHARS_MAX, Embedder, Vector, Vectors, unit
from recalld.errors import ConfigError, EmbedderError

BATCH_TEXTS = 32  # about 128 kB and, at 30 ms a text on a laptop, a second
BATCH_SECONDS = 30.0
ANSWER_BYTES_MAX = 32 << 20  # 32 vectors of 8,192 numbers in 25 characters each are 7 MiB
_READ_BYTES = 1 << 16
_DETAIL_CHARS = 200
_REFUSALS = frozenset({400, 413, 422})  # the request is wrong, or one of its texts
_PLAIN_TEXT = "The weather is fine today."


class _Row(Struct):
    embedding: list[float]
    index: int | None = None


class _Answer(Struct):
    data: list[_Row]


class _ErrorDetail(Struct):
    message: str = ""


class _ErrorAnswer(Struct):
    """OpenAI's errors are objects, those of some servers texts."""

    error: _ErrorDetail | str = ""


class _RefusedError(EmbedderError):
    """The server works and does not take this request."""


class OpenAIEmbedder(Embedder):
    """`dimensions` is learnt from the first answer unless it is configured; an answer of another size is an error."""

    later = True
    remote = True

    def __init__(self, config: EmbedderConfig, environ: Mapping[str, str]) -> None:
        """Asks nothing yet. Raises ConfigError."""
        url = urlsplit(config.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(
                f"`embedder.base_url` is {config.base_url!r}: write the address of the server, such as"
                " http://127.0.0.1:11434/v1"
            )
        if not config.model:
            raise ConfigError(
                '`embedder.kind` is "openai": name the model in `embedder.model`, such as nomic-embed-text'
            )
        self.server = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"
        self.dimensions = config.dimensions
        self.identity = f"openai/{config.model}/{config.dimensions or 'own'}/text-{TEXT_CHARS_MAX}"
        self._host, self._port = url.hostname, url.port
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._path = f"{url.path.rstrip('/')}/embeddings"
        self._model = config.model
        self._asked_dimensions = config.dimensions
        self._key = _secret(config.api_key, environ)
        self._idle: list[http.client.HTTPConnection] = []  # open, from requests before; no more than ran side by side

    def embed(self, texts: list[str]) -> Vectors:
        """In batches; a text that the server does not take while it takes another one gets the zero vector."""
        parts = [self._embed_batch(texts[i : i + BATCH_TEXTS]) for i in range(0, len(texts), BATCH_TEXTS)]
        return np.concatenate(parts) if parts else np.empty((0, self.dimensions), dtype=np.float32)

    def embed_query(self, text: str, deadline: float) -> Vector:
        return np.asarray(self._request([text], deadline)[0], dtype=np.float32)

    def _embed_batch(self, texts: list[str]) -> Vectors:
        try:
            return self._request(texts, time.monotonic() + BATCH_SECONDS)
        except _RefusedError:
            if len(texts) > 1:
                return np.concatenate([self._embed_batch([text]) for text in texts])
            self._request([_PLAIN_TEXT], time.monotonic() + BATCH_SECONDS)  # raises if it is not the text's fault
            return np.zeros((1, self.dimensions), dtype=np.float32)

    def _request(self, texts: list[str], deadline: float) -> Vectors:
        body: dict[str, object] = {"model": self._model, "input": [text[:TEXT_CHARS_MAX] or " " for text in texts]}
        if self._asked_dimensions:
            body["dimensions"] = self._asked_dimensions
        status, answer = self._exchange(msgspec.json.encode(body), deadline)
        if status != http.HTTPStatus.OK:
            raise self._refusal(status, answer)
        try:
            rows = msgspec.json.decode(answer, type=_Answer).data
            vectors = np.array([row.embedding for row in _in_order(rows)], dtype=np.float32)
        except (msgspec.MsgspecError, ValueError) as e:
            raise EmbedderError(
                f"{self.server} answered what is not a list of embeddings ({e}): `embedder.base_url` should end where"
                " /embeddings begins"
            ) from None
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise EmbedderError(
                f"{self.server} answered {len(vectors)} vectors for {len(texts)} texts, or not all numbers"
            )
        self.dimensions = self.dimensions or vectors.shape[1]
        if vectors.shape[1] != self.dimensions:
            raise EmbedderError(
                f"{self.server} answered vectors of {vectors.shape[1]} dimensions where {self._model} has"
                f" {self.dimensions}: another model has its name now; name that one in `embedder.model`, or set"
                " `embedder.dimensions`"
            )
        return unit(vectors)

    def _exchange(self, body: bytes, deadline: float) -> tuple[int, bytes]:
        """(status, body) of the answer. A connection that the server closed while it was idle is made anew, once."""
        try:
            with suppress(IndexError):
                kept = self._idle.pop()
                with suppress(http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                    return self._send(kept, body, deadline)
            return self._send(self._connection(deadline), body, deadline)
        except TimeoutError:
            raise EmbedderError(
                f"{self.server} did not answer in time: is it overloaded? `embedder.timeout_ms` and `recall.ttl_ms` give"
                " it more"
            ) from None
        except (OSError, http.client.HTTPException) as e:
            raise EmbedderError(f"{self.server} cannot be asked ({e or type(e).__name__}): is it running?") from None

    def _connection(self, deadline: float) -> http.client.HTTPConnection:
        seconds = _left(deadline)
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=seconds)

    def _send(self, connection: http.client.HTTPConnection, body: bytes, deadline: float) -> tuple[int, bytes]:
        """One request; the connection is kept for the next one unless anything is wrong with it."""
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "recalld"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(_left(deadline))
            connection.request("POST", self._path, body, headers)
            response = connection.getresponse()
            answer = self._read(connection, response, deadline)
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            self._idle.append(connection)
        return response.status, answer

    def _read(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float
    ) -> bytes:
        answer = bytearray()
        while part := response.read1(_READ_BYTES):
            answer += part
            if len(answer) > ANSWER_BYTES_MAX:
                raise EmbedderError(f"{self.server} answered more than {ANSWER_BYTES_MAX >> 20} MiB")
            if connection.sock is not None:  # None: the server closes after this answer
                connection.sock.settimeout(_left(deadline))
        if response.length:  # read1 does not tell an answer that was cut off from one that ended
            raise http.client.IncompleteRead(bytes(answer), response.length)
        response.close()
        return bytes(answer)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _refusal(self, status: int, answer: bytes) -> EmbedderError:
        if status in (401, 403):  # their texts may quote the key
            return EmbedderError(f"{self.server} refused the key (HTTP {status}): correct `embedder.api_key`")
        try:
            error = msgspec.json.decode(answer, type=_ErrorAnswer).error
            detail = (error if isinstance(error, str) else error.message)[:_DETAIL_CHARS]
        except msgspec.MsgspecError:
            detail = ""
        if self._key:
            detail = detail.replace(self._key, "***")
        kind = _RefusedError if status in _REFUSALS else EmbedderError
        remedy = "check `embedder.model` and `embedder.base_url`" if status < 500 else "look at its log"
        return kind(f"{self.server} answered HTTP {status} ({detail or 'no reason given'}): {remedy}")


def _in_order(rows: list[_Row]) -> list[_Row]:
    return sorted(rows, key=lambda row: row.index or 0)


def _left(deadline: float) -> float:
    """Seconds until then. Raises TimeoutError where there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _secret(where: str, environ: Mapping[str, str]) -> str:
    """The key that `env:NAME` or `file:PATH` names. Raises ConfigError, which never shows it."""
    kind, _, name = where.partition(":")
    if kind == "env":
        if not environ.get(name):
            raise ConfigError(f"`embedder.api_key` names the environment variable {name}, which is not set: set it")
        key = environ[name]
    elif kind == "file":
        try:
            key = Path(name).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"`embedder.api_key` names the file {name}, which cannot be read: {e}") from None
    else:
        return ""
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise ConfigError("`embedder.api_key` leads to something that is not a key: it has unprintable characters")
    return key
