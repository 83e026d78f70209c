"""A client from the protocol's text alone: blocking sockets and JSON. `python plain_socket.py RUNTIME_DIR`"""

import json
import select
import socket
import struct
import sys
import time
import uuid
from pathlib import Path
from typing import Any

Map = dict[str, Any]


class PlainClient:
    def __init__(self, runtime_dir: Path) -> None:
        self.src = f"plain-{uuid.uuid4().hex[:8]}"
        self.topic = f"ctx/{self.src}".encode() + b"\0"
        self.seq = 0
        self.unacked: dict[int, Map] = {}
        self.context = self.dial(runtime_dir / "context.ipc", ours=0x21, theirs=0x20)
        self.events = self.dial(runtime_dir / "events.ipc", ours=0x20, theirs=0x21)
        hello = self.envelope("hello", event={"client": "plain", "oldest": 1, "lost": 0})
        self.welcome = self.answer("welcome", hello["id"], again=[hello])

    def dial(self, path: Path, ours: int, theirs: int) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(struct.pack(">4sHH", b"\0SP\0", ours, 0))
        assert self.exactly(connection, 8) == struct.pack(">4sHH", b"\0SP\0", theirs, 0)
        return connection

    def exactly(self, connection: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = connection.recv(count - len(data))
            if not part:
                raise ConnectionError("closed by the daemon")
            data += part
        return data

    def envelope(self, type: str, **fields: Any) -> Map:
        now_ms = int(time.time() * 1000)
        return {"v": 1, "type": type, "id": uuid.uuid4().hex, "src": self.src, "ts": now_ms, **fields}

    def send(self, message: Map) -> None:
        body = json.dumps(message).encode()
        self.events.sendall(b"\x01" + struct.pack(">Q", len(body)) + body)

    def receive(self, wait_s: float) -> Map | None:
        """Our next answer, if there is one within this time."""
        while select.select([self.context], [], [], wait_s)[0]:
            kind, length = struct.unpack(">BQ", self.exactly(self.context, 9))
            assert kind == 1
            body = self.exactly(self.context, length)
            if body.startswith(self.topic):
                answer: Map = json.loads(body[len(self.topic) :])
                if answer["type"] in ("ack", "welcome"):
                    self.unacked = {seq: event for seq, event in self.unacked.items() if seq > answer["upto"]}
                return answer
        return None

    def answer(self, type: str, re: str | None = None, again: list[Map] | None = None, wait_s: float = 20) -> Map:
        """Wait for one answer; what is in `again` is sent every 100 ms until it comes."""
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            for message in again or []:
                self.send(message)
            answer = self.receive(0.1)
            if answer and answer["type"] == type and (re is None or answer.get("re") == re):
                return answer
        raise TimeoutError(f"no {type}")

    def publish(self, type: str, ctx: Map, event: Map) -> None:
        self.seq += 1
        self.unacked[self.seq] = self.envelope(type, seq=self.seq, ctx=ctx, event=event)
        self.send(self.unacked[self.seq])

    def turn(self, ctx: Map, prompt: str, reply: str) -> Map:
        """Publish one turn until it is on disk; gives what is `captured`."""
        self.publish("llm_input", ctx, {"prompt": prompt})
        self.publish("llm_output", ctx, {"assistantTexts": [reply]})
        self.publish("agent_end", ctx, {"success": True})
        captured: Map | None = None
        until = time.monotonic() + 20
        while (self.unacked or captured is None) and time.monotonic() < until:
            answer = self.receive(1.0)
            if answer is None:
                for event in self.unacked.values():
                    self.send(event)
            elif answer["type"] == "captured":
                captured = answer
        if captured is None:
            raise TimeoutError("no captured")
        return captured

    def ask(self, ctx: Map, prompt: str, ttl_ms: int = 1000) -> Map:
        question = self.envelope("before_prompt_build", ttl_ms=ttl_ms, ctx=ctx, event={"prompt": prompt})
        self.send(question)
        return self.answer("context", question["id"], wait_s=ttl_ms / 1000 + 1)

    def close(self) -> None:
        self.events.close()
        self.context.close()


if __name__ == "__main__":
    client = PlainClient(Path(sys.argv[1]))
    scope = {"agent_id": "plain", "session_key": "agent:plain:first", "trigger": "user", "chat_type": "direct"}
    print(client.turn(scope | {"run_id": "1"}, "My boat Aurora lies in Lisbon.", "I will remember that."))
    print(client.ask(scope | {"session_key": "agent:plain:second"}, "Where does my boat Aurora lie?"))
    client.close()
