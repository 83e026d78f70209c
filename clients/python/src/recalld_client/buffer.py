"""What was emitted and is not acknowledged yet, and what of it to send next. Pure: time is an argument."""

EVENTS_MAX = 8192
"""The daemon takes no more unacknowledged events of one `src`."""

BYTES_MAX = 64 * 1024 * 1024
"""8192 events of the largest size would be 32 GiB of the host's memory."""

PAUSE_S = 1.0
"""Without an acknowledgement for this long, everything is sent again."""

GAP_PAUSE_S = 0.1
"""One gap shows in every acknowledgement until it is closed; what fills it is sent at most once in this time."""


class ResendBuffer:
    """Numbers messages from 1, keeps them until they are acknowledged, and says which to send next.

    `now` is in seconds of any clock that does not go backwards. Not safe for concurrent use.
    """

    def __init__(self, *, events_max: int = EVENTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        if events_max < 1 or bytes_max < 1:
            raise ValueError("the bounds of a resend buffer are at least 1")
        self.next_seq = 1
        """The seq that the next message gets."""
        self.oldest = 1
        """The lowest seq that can still be sent; `next_seq` when there is none."""
        self.lost = 0
        """Messages given up: overflown, refused, or never fit to be sent."""
        self.window = events_max
        """At most this many unacknowledged messages are under way at a time."""
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._messages: dict[int, bytes] = {}
        self._bytes = 0
        self._upto = 0  # what the daemon said last: everything up to here is settled
        self._cursor = 1  # everything below was sent since the last welcome or pause
        self._again = range(0)  # what fills a gap, sent before the cursor moves on
        self._since = 0.0  # the pause counts from here
        self._gap_at = float("-inf")

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def unsettled(self) -> bool:
        """True while the daemon waits for something that is not here any more: it must be told `oldest`."""
        return self._upto < self.oldest - 1

    def add(self, message: bytes) -> int:
        """Keep a message under the next seq, which is returned. Where it does not fit, the oldest are given up."""
        while self._messages and (
            len(self._messages) >= self._events_max or self._bytes + len(message) > self._bytes_max
        ):
            self.give_up(self.oldest)
        seq = self.next_seq
        self._messages[seq] = message
        self._bytes += len(message)
        self.next_seq += 1
        return seq

    def refuse(self) -> None:
        """Count a message that cannot be sent at all. It takes no seq: it would be a gap that nothing fills."""
        self.lost += 1

    def give_up(self, seq: int) -> bool:
        """Drop one message that the daemon will never take, and count it. False when it is not here."""
        if not self._drop(seq):
            return False
        self.lost += 1
        self._advance(self.oldest)
        return True

    def welcome(self, upto: int, now: float) -> None:
        """On a new connection: settle up to `upto`, and start again with everything that is left.

        `upto` may be lower than it was: a daemon that lost its disk does not know what it acknowledged.
        """
        self._settle(upto)
        self._upto = min(upto, self.next_seq - 1)
        self._rewind(now)

    def ack(self, upto: int, highest: int, now: float) -> None:
        """Settle up to `upto`, and plan to send again what is missing below `highest`, the highest seq stored."""
        if upto > self._upto:
            self._since = now
            self._upto = min(upto, self.next_seq - 1)
        self._settle(upto)
        if highest > self._upto and now - self._gap_at >= GAP_PAUSE_S:
            self._gap_at = now
            self._again = range(max(self._upto + 1, self.oldest), min(highest + 1, self._cursor))

    def take(self, bytes_max: int, now: float) -> list[bytes]:
        """The next messages to send, in order of seq, until they have `bytes_max` bytes. Empty: nothing to send."""
        taken: list[bytes] = []
        size = 0
        if self._cursor == self.oldest:
            self._since = now
        while size < bytes_max:
            if self._again:
                seq, self._again = self._again[0], self._again[1:]
            elif self._cursor < min(self.next_seq, self.oldest + self.window):
                seq = self._cursor
                self._cursor += 1
            else:
                break
            message = self._messages.get(seq)
            if message is not None:
                taken.append(message)
                size += len(message)
        return taken

    def next_timer(self) -> float | None:
        """When `handle_timer` wants to be called; None while nothing is under way."""
        return self._since + PAUSE_S if self._cursor > self.oldest else None

    def handle_timer(self, now: float) -> None:
        """Start again with everything when nothing was acknowledged for `PAUSE_S`. Harmless when called early."""
        timer = self.next_timer()
        if timer is not None and now >= timer:
            self._rewind(now)

    def _settle(self, upto: int) -> None:
        if upto < self.oldest:
            return
        upto = min(upto, self.next_seq - 1)
        for seq in range(self.oldest, upto + 1):
            self._drop(seq)
        self._advance(upto + 1)

    def _drop(self, seq: int) -> bool:
        message = self._messages.pop(seq, None)
        if message is None:
            return False
        self._bytes -= len(message)
        return True

    def _advance(self, oldest: int) -> None:
        while oldest < self.next_seq and oldest not in self._messages:
            oldest += 1
        self.oldest = oldest
        self._cursor = max(self._cursor, oldest)

    def _rewind(self, now: float) -> None:
        self._cursor = self.oldest
        self._again = range(0)
        self._since = now
