"""sd_notify: telling the service manager how we are. Does nothing where there is none."""

from __future__ import annotations

import os
import socket
import time


class Notifier:
    """Source of the protocol: sd_notify(3)."""

    def __init__(self, environ: dict[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        address = env.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        pid = env.get("WATCHDOG_PID")
        usec = env.get("WATCHDOG_USEC", "")
        mine = pid is None or pid == str(os.getpid())
        self.watchdog_s = int(usec) / 1e6 if usec.isdigit() and mine and self._address else None

    def send(self, *lines: str) -> None:
        """Never raises: a lost notification is the manager's to notice."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
                s.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return

    def ready(self, status: str) -> None:
        self.send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        self.send(f"STATUS={status}")

    def reloading(self) -> None:
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self.send("STOPPING=1", "STATUS=draining")

    def alive(self) -> None:
        self.send("WATCHDOG=1")
