"""Answers that come late: a grid that holds each of them back until its time."""

import time

from strategies.rounds.grids import PassingGrid


class LateGrid(PassingGrid):
    """The answers of `grid`, which are there at once, come after `delay(message)` seconds of real time; None: never."""

    def __init__(self, grid, delay):
        super().__init__(grid)
        self._delay, self._due, self._lost = delay, {}, set()

    def push_messages(self, messages):
        ids = list(self._grid.push_messages(messages))
        for message, identifier in zip(messages, ids, strict=True):
            seconds = self._delay(message)
            if seconds is None:
                self._lost.add(identifier)
            else:
                self._due[identifier] = time.monotonic() + seconds
        return ids

    def pull_messages(self, message_ids):
        now = time.monotonic()
        return self._grid.pull_messages([i for i in message_ids if self._due.get(i, 0) <= now and i not in self._lost])

    def send_and_receive(self, messages, *, timeout=None):
        waiting, found = set(self.push_messages(list(messages))), []
        until = time.monotonic() + (60 if timeout is None else timeout)
        while waiting and time.monotonic() < until:
            fresh = list(self.pull_messages(waiting))
            waiting -= {m.metadata.reply_to_message_id for m in fresh}
            found += fresh
            time.sleep(0.001)
        return found
