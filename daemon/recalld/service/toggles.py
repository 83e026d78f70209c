"""Where memory is turned off: kept in the record, held in memory for the reply path."""

from __future__ import annotations

from recalld.core.scope import Scope
from recalld.edge.store import Store
from recalld.edge.units import EVERYWHERE, toggle_unit
from recalld.service.writer import Writer

SESSIONS_MAX = 10_000  # off at the same time; to drop the oldest would turn memory on behind a person's back

Place = tuple[str, str]  # agent, session


class Toggles:
    """Asked from the event loop only."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store = store
        self._writer = writer
        self._off: set[Place] = set()

    async def restore(self) -> None:
        """Take up what was off when the last daemon stopped. Raises StorageError."""
        self._off = set(await self._store.toggled_off())

    @property
    def everywhere(self) -> bool:
        """Whether memory is on, but for single sessions."""
        return EVERYWHERE not in self._off

    @property
    def full(self) -> bool:
        """Whether no other session can be turned off."""
        return len(self._off) >= SESSIONS_MAX

    def session(self, place: Place) -> bool:
        """Whether memory is on in a session, where it is on everywhere."""
        return place not in self._off

    def off(self, scope: Scope | None) -> bool:
        """Whether nothing may be given or kept here."""
        if not self._off or scope is None:
            return False
        return EVERYWHERE in self._off or (scope.agent, scope.session) in self._off

    async def turn(self, place: Place, *, on: bool) -> None:
        """Return when it is on disk and holds. Raises StorageError, and then nothing has changed."""
        await self._writer.write(toggle_unit(place, on=on))
        if on:
            self._off.discard(place)
        else:
            self._off.add(place)
