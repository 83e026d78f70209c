"""Error codes of the protocol: stable names on the wire, a class of fault, and a remedy for a person."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """Whose fault an error is."""

    CALLER = "caller"  # the message is wrong; sending it again cannot help
    DAEMON = "daemon"  # a defect in recalld
    ENVIRONMENT = "environment"  # disk, load, shutdown: the same message may succeed later


class Code(StrEnum):
    """Every error code of protocol version 1. The value is what travels."""

    MALFORMED = "E_MALFORMED"
    TOO_LARGE = "E_TOO_LARGE"
    VERSION = "E_VERSION"
    ENVELOPE = "E_ENVELOPE"
    UNKNOWN_TYPE = "E_UNKNOWN_TYPE"
    UNKNOWN_OP = "E_UNKNOWN_OP"
    PARAMS = "E_PARAMS"
    SCOPE = "E_SCOPE"
    TOKEN = "E_TOKEN"  # noqa: S105  (an error code, not a secret)
    NOT_FOUND = "E_NOT_FOUND"
    DEADLINE = "E_DEADLINE"
    BUSY = "E_BUSY"
    STORAGE = "E_STORAGE"
    DRAINING = "E_DRAINING"
    INTERNAL = "E_INTERNAL"


FAULT: dict[Code, Fault] = {
    Code.MALFORMED: Fault.CALLER,
    Code.TOO_LARGE: Fault.CALLER,
    Code.VERSION: Fault.CALLER,
    Code.ENVELOPE: Fault.CALLER,
    Code.UNKNOWN_TYPE: Fault.CALLER,
    Code.UNKNOWN_OP: Fault.CALLER,
    Code.PARAMS: Fault.CALLER,
    Code.SCOPE: Fault.CALLER,
    Code.TOKEN: Fault.CALLER,
    Code.NOT_FOUND: Fault.CALLER,
    Code.DEADLINE: Fault.ENVIRONMENT,
    Code.BUSY: Fault.ENVIRONMENT,
    Code.STORAGE: Fault.ENVIRONMENT,
    Code.DRAINING: Fault.ENVIRONMENT,
    Code.INTERNAL: Fault.DAEMON,
}

REMEDY: dict[Code, str] = {
    Code.MALFORMED: "send one JSON object or one MessagePack map per message",
    Code.TOO_LARGE: "cut the event down before sending it; the limit is in the welcome",
    Code.VERSION: "speak a protocol version the daemon supports; it lists them in the message",
    Code.ENVELOPE: "correct the named field; protocol/README.md gives its type and bound",
    Code.UNKNOWN_TYPE: "nothing to do: the daemon counts and ignores types it does not know",
    Code.UNKNOWN_OP: "use one of the operations in protocol/README.md",
    Code.PARAMS: "correct the named parameter; protocol/README.md gives its type and bound",
    Code.SCOPE: "send ctx.agent_id and ctx.session_key (or ctx.session_id) with the message",
    Code.TOKEN: "send the token from the daemon's token file with each request over TCP",
    Code.NOT_FOUND: "check the id; another agent's memories cannot be named",
    Code.DEADLINE: "ask with a larger ttl_ms, or look at the load in `recalld status`",
    Code.BUSY: "try again after a pause",
    Code.STORAGE: "free space or repair the data folder; `recalld doctor` names the cause",
    Code.DRAINING: "connect again after the daemon's restart; unacknowledged events are still yours to send",
    Code.INTERNAL: "a defect in recalld: the daemon's log has the details; please report it",
}


class ProtocolError(Exception):
    """A message that cannot be served. `code` travels, `message` names the thing."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
