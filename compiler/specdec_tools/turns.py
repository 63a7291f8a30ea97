"""One thread and the works that wait for it: what was asked first runs first, one at a time; who waits costs nothing.

Does not know what the works do. Safe to use from any thread. Invariants: a work that was cancelled while it waited never runs; a
work that runs sees `cancelled` and is expected to end soon; whatever a work does, the next one gets its turn; the thread never
keeps the program alive.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from specdec_runtime.faults import RequestError

Work = Callable[["Turn"], None]


class Turn:
    """One work: waiting, running, or over."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.cancelled = False


class Turns:
    """The queue. Its thread starts with the first work."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turns: deque[Turn] = deque()  # the running one, then those that wait
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        """How many run or wait."""
        return len(self._turns)

    def add(self, work: Work) -> Turn:
        turn = Turn(work)
        with self._changed:
            if self._closed:
                raise RequestError("the client is closed", "Client", "Open another one")
            self._turns.append(turn)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="specdec", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return turn

    def cancel(self, turn: Turn) -> bool:
        """The work never runs (True), or is told to end; one that is over is left alone."""
        with self._changed:
            turn.cancelled = True
            waits = turn in self._turns and turn is not self._turns[0]
            if waits:
                self._turns.remove(turn)
            return waits

    def close(self) -> None:
        """No work is taken any more; the running one is told to end and waited for, the others never run."""
        with self._changed:
            self._closed = True
            for turn in self._turns:
                turn.cancelled = True
            self._changed.notify_all()
            thread = self._thread
        if thread and thread is not threading.current_thread():
            thread.join()

    def _next(self) -> Turn | None:
        """The first turn, once there is one; None when the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._turns or self._closed)
            return self._turns[0] if self._turns else None

    def _serve(self) -> None:
        while turn := self._next():
            try:
                turn.work(turn)
            finally:
                with self._changed:
                    self._turns.popleft()
