"""A server of OpenAI's embeddings protocol that can be slow, stuck, broken, or have another model than it had."""

from __future__ import annotations

import json
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def bag(text: str, dimensions: int) -> list[float]:
    """Texts with words in common have like vectors."""
    vector = [0.0] * dimensions
    for word in text.lower().replace("?", " ").replace(".", " ").split():
        vector[zlib.crc32(word.encode()) % dimensions] += 1.0
    return vector


class FakeEmbeddings:
    """`answering` cleared: requests are held. `fault`: what is answered instead (see `_Handler`). `poison`: a text that
    holds it is refused. `inputs` is what was asked, one list for each request, `keys` the Authorization headers."""

    def __init__(self, dimensions: int = 32) -> None:
        self.dimensions = dimensions
        self.answering = threading.Event()
        self.answering.set()
        self.fault = ""
        self.poison = "\0"
        self.inputs: list[list[str]] = []
        self.keys: list[str | None] = []
        self.asked: list[dict[str, Any]] = []
        self.connections = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeEmbeddings:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.answering.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        texts: list[str] = body["input"]
        if self.fault == "status":
            return 500, b'{"error": {"message": "out of memory"}}'
        if self.fault == "key":
            return 401, b'{"error": {"message": "Incorrect API key provided: sk-secret"}}'
        if self.fault == "refusal" or any(self.poison in text for text in texts):
            return 400, b'{"error": "input is too long"}'
        if self.fault == "garbage":
            return 200, b"<html>It works!</html>"
        rows = [{"index": i, "embedding": bag(text, self.dimensions)} for i, text in enumerate(texts)]
        if self.fault == "missing":
            rows.pop()
        return 200, json.dumps({"object": "list", "data": rows[::-1], "model": body["model"]}).encode()

    def _handler(fake) -> type[BaseHTTPRequestHandler]:
        class _Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                fake.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.asked.append(body)
                fake.inputs.append(body["input"])
                fake.keys.append(self.headers.get("Authorization"))
                fake.answering.wait(60)
                if fake.fault == "hang up":
                    self.close_connection = True
                    return
                status, answer = fake.answer(body) if self.path == "/v1/embeddings" else (404, b"")
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer[: len(answer) // 2] if fake.fault == "half" else answer)
                except OSError:  # nobody waits any more
                    self.close_connection = True
                if fake.fault in ("half", "last"):  # "last": a good answer, and then the idle connection is closed
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

        return _Handler
