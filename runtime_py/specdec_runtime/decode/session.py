"""What a device keeps between requests: named sessions, each with its ids and the KV of both models, on one pool of pages a model.

A request of a session begins with the longest prefix of its prompt whose KV is held: by the session itself up to any position, by
another one in whole pages, which both then hold and neither writes. Knows no round and no drafter. Invariants:
- a session's KV of length n is that of its first n ids, as a cold run computes it (docs/exactness.md); nothing else is kept;
- the last token of a prompt is always computed anew, and what is kept ends where `Programs.reuse_unit` allows;
- one request runs at a time; idle sessions, the one used longest ago first, give up their pages when a pool is empty;
- a request that does not come to its Finish, or saw a fault of the device on its way, leaves nothing behind: all is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from math import lcm
from typing import Any

from specdec_runtime.decode.cache import ModelCache
from specdec_runtime.decode.effects import Effect, Effects, Finish
from specdec_runtime.decode.pages import PagePool, PageTable
from specdec_runtime.decode.programs import ANY, Programs
from specdec_runtime.decode.sampling_state import Held
from specdec_runtime.decode.sequence import Sequence as TokenSequence
from specdec_runtime.faults import ContractError, DeviceFault, RequestError
from specdec_runtime.plan.schema import Model, Plan

MAX_NAME = 64


def check_session(name: Any) -> None:
    """What a session may be called."""
    if not (isinstance(name, str) and 0 < len(name) <= MAX_NAME):
        raise RequestError(f"session is {name!r}", "session", f"Give a name of 1 to {MAX_NAME} characters")


class Session:
    """One conversation: ids, and by role the pages of the KV of their beginning."""

    def __init__(self, tables: dict[str, PageTable]) -> None:
        self.ids: list[int] = []
        self.tables = tables

    def release(self) -> None:
        for table in self.tables.values():
            table.rollback(0)
        self.ids = []


class Lease:
    """What a running request has of the memory."""

    def __init__(self, session: Session, sequence: TokenSequence, caches: dict[str, ModelCache]) -> None:
        self.session = session
        self.sequence = sequence
        self.target = caches["target"]
        self.draft = caches.get("draft")
        self.num_cached = self.target.cached_len  # tokens of the prompt that need no prefill


class Memory:
    """The KV of one device, as the host knows it."""

    def __init__(self, plan: Plan, programs: Programs = ANY) -> None:
        self._models: dict[str, Model] = {model.role: model for model in plan.models}
        self._programs = programs
        self._pools = {model.role: PagePool(model.num_pages, self._evict) for model in plan.models}
        # of the device's page tables
        self._entries: dict[str, list[int]] = {role: [] for role in self._models}
        self._tokens: list[int] = []  # the first ones of the device's `tokens`
        self._sessions: dict[str, Session] = {}  # by last use, the longest ago first
        self._running: Lease | None = None
        self._num_evicted = 0
        self.held = Held()  # of requests' sampling

    def serve(self, name: str | None, ids: Sequence[int], begin: Callable[[Lease], Effects]) -> Effects:
        """The effects of `begin`, on a lease for them; without a name nothing is reused and nothing kept."""
        lease = self._open(name, ids)
        faulted = False
        try:
            with closing(begin(lease)) as effects:
                effect: Effect = next(effects)
                while not isinstance(effect, Finish):
                    try:
                        answer = yield effect
                    except Exception as error:  # it is the run's to decide; Cancelled is one
                        faulted = faulted or isinstance(error, DeviceFault)
                        effect = effects.throw(error)
                    else:
                        effect = effects.send(answer)
            self._close(lease, keep=not faulted)
            yield effect
        finally:
            if self._running is lease:
                self._close(lease, keep=False)

    def drop(self, name: str) -> bool:
        """Give a session's pages back; False where there is none of that name (it may have been evicted)."""
        check_session(name)
        session = self._sessions.get(name)
        if session is None:
            return False
        if self._running and self._running.session is session:
            raise RequestError(f"session {name!r} is in use", "session", "Wait for its request, or cancel it")
        del self._sessions[name]
        session.release()
        return True

    def forget(self) -> None:
        """Somebody else wrote to the device, or its memory cannot be trusted: nothing that was there counts any more."""
        if self._running is not None:
            raise ContractError("a request still has the memory", "decode/session.py", "End it first")
        for session in self._sessions.values():
            session.release()
        self._sessions.clear()
        self.held = Held()
        self._distrust()

    def report(self) -> dict[str, Any]:
        """The sessions, used longest ago first, and the pages of each model."""
        sessions = [
            {
                "name": name,
                "tokens": session.tables["target"].length,
                "pages": {role: len(table.pages) for role, table in session.tables.items()},
            }
            for name, session in self._sessions.items()
        ]
        pages = {
            role: {"held": pool.num_held, "total": self._models[role].num_pages}
            for role, pool in self._pools.items()
        }
        return {"sessions": sessions, "pages": pages, "num_evicted": self._num_evicted}

    def _open(self, name: str | None, ids: Sequence[int]) -> Lease:
        if self._running is not None:
            raise ContractError("another request has the memory", "decode/session.py", "End it first")
        session = self._take(name)
        sequence = TokenSequence(ids)
        if name is None:
            self._distrust()
        else:
            self._restore(session, sequence.ids)
            sequence.landed(_common(self._tokens, sequence.ids))
        feeding = {"target": self._programs.feeding(self._models["target"])}
        caches = {
            role: ModelCache(self._models[role], feeding.get(role), table)
            for role, table in session.tables.items()
        }
        self._running = Lease(session, sequence, caches)
        return self._running

    def _take(self, name: str | None) -> Session:
        """The session of that name, now the one used last; or a new one."""
        session = self._sessions.pop(name, None) if name is not None else None
        if session is None:
            session = Session(
                {
                    role: PageTable(self._pools[role], model.page_size, self._entries[role])
                    for role, model in self._models.items()
                }
            )
        if name is not None:
            self._sessions[name] = session
        return session

    def _restore(self, session: Session, ids: list[int]) -> None:
        """Keep the longest prefix that somebody holds, for each model by itself."""
        for role, table in session.tables.items():
            # A target's cycle begins with the last token. A draft's may be sent back to the last two (rounds).
            most, unit = len(ids) - 1, self._programs.reuse_unit(self._models[role])
            if role == "draft":
                most, unit = max(0, most - 1), 1
            page = lcm(unit, self._models[role].page_size)
            own = min(most, table.length, _common(session.ids, ids)) // unit * unit
            if table.begins_in_shared(own):
                own = own // page * page
            other, shared = self._longest(session, role, ids, most, page)
            if other and shared > own:
                table.share(other, shared)
            else:
                table.rollback(own)
            table.resume()

    def _longest(
        self, session: Session, role: str, ids: list[int], most: int, page: int
    ) -> tuple[PageTable | None, int]:
        """The table of another session with the longest prefix of ids in whole pages, and the length of that."""
        found: tuple[PageTable | None, int] = None, 0
        for other in self._sessions.values():
            table = other.tables[role]
            limit = min(most, table.length)
            if other is not session and limit // page * page > found[1]:
                length = min(limit, _common(other.ids, ids)) // page * page
                found = (table, length) if length > found[1] else found
        return found

    def _close(self, lease: Lease, keep: bool) -> None:
        self._running = None
        session, sequence = lease.session, lease.sequence
        anonymous = all(session is not held for held in self._sessions.values())
        if not keep or anonymous:
            session.release()
        if not keep:
            self.forget()
        elif anonymous:
            self._distrust()
        else:
            session.ids = list(sequence.ids)
            self._tokens = sequence.ids[: sequence.on_device_len]
            for table in session.tables.values():
                # pages of rows that came to nothing go back; so do drafts that a stepwise drafter has fed
                table.rollback(min(table.length, len(session.ids)))

    def _distrust(self) -> None:
        """The device's tables and tokens are sent anew."""
        self._tokens = []
        for entries in self._entries.values():
            entries.clear()

    def _evict(self) -> bool:
        """Give up the idle session that was used longest ago."""
        for name, session in self._sessions.items():
            if self._running is None or session is not self._running.session:
                del self._sessions[name]
                session.release()
                self._num_evicted += 1
                return True
        return False


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length
