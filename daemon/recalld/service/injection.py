"""From ranked memories to the answer that carries them: chosen, thinned of what is known, packed, and remembered as given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence

from recalld.core.choose import choose, digest
from recalld.core.given import Given, Session
from recalld.core.pack import pack
from recalld.core.policy import stands
from recalld.core.rank import Background
from recalld.core.scored import Candidate, Ranked, Scored
from recalld.edge.reader import Reader
from recalld.service.notices import now_ms
from recalld.service.question import Question
from recalld.wire.messages import ContextBody, Status

DIGEST_MAX = 32  # memories read for a digest; its budget holds fewer
HINT = "{count} memories of earlier conversations are kept. The tool memory_search finds them."


class Injection:
    """`compose` from recall's threads; `forget` from the event loop. `held`: how many memories a namespace has."""

    def __init__(self, background: Background, held: Callable[[str], int]) -> None:
        self._background = background
        self._held = held
        self._given = Given()
        self._lock = threading.Lock()  # around what was given

    def forget(self, session: Hashable) -> None:
        """What this session was given is out of its model's sight: it was compacted, reset, ended or begun."""
        with self._lock:
            self._given.forget(session)

    def is_first(self, question: Question) -> bool:
        """Whether nothing was asked before in the question's session, as far as its model still sees."""
        with self._lock:
            return self._session(question).recent(question.run_id or question.key, 0).first

    def _session(self, question: Question) -> Session:
        key = (question.agent, question.session)
        return self._given.session(key, question.session_id) if question.session else Session()

    def compose(
        self,
        question: Question,
        ranked: Ranked,
        reader: Reader,
        reason: str | None,
    ) -> ContextBody:
        """The answer, but for its time. `reason`: what was late. Raises StorageError where a digest cannot be read."""
        settings = question.settings
        run_id = question.run_id or question.key
        with self._lock:
            session = self._session(question)
            recent = session.recent(run_id, settings.repeat_turns)
        chosen = choose(ranked.memories, settings, ranked.weights, self._background.share, recent)
        newest: Sequence[Candidate] = ()
        hint = ""
        if recent.first and len(chosen) < settings.items_max and time.monotonic() < question.cutoff:
            newest, hint = self._cold_start(question, chosen, reader)
        packed = pack(chosen, settings, ranked.weights, newest, hint)
        with self._lock:
            if not question.answered:  # else the keeper lost patience, and nothing was given
                session.gave(run_id, packed.shown, settings.repeat_turns)
        status: Status = "partial" if reason else "ok" if packed.text else "empty"
        if not reason and not chosen:
            reason = "cold_start" if packed.text else "given" if ranked.memories else None
        placement = settings.placement if packed.text else "prepend"
        return ContextBody(status, 0.0, packed.text, packed.tokens, reason, packed.memories, placement)

    def _cold_start(
        self, question: Question, chosen: Sequence[Scored], reader: Reader
    ) -> tuple[Sequence[Candidate], str]:
        """The newest memories, or a line that there are some: what the settings say a first prompt gets."""
        how = question.settings.cold_start
        if how == "digest":
            now = now_ms()
            newest = [m for m in reader.newest(question.namespace, DIGEST_MAX) if stands(m, now)]
            return digest(newest, chosen, question.settings.categories, self._background.share), ""
        count = self._held(question.namespace) if how == "hint" else 0
        return (), HINT.format(count=count) if count else ""
