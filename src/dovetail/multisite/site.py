"""A site: one stream's window, copies of others, and its part of the plan.

A site does no I/O and reads no clock. Whoever drives it calls `tick` with the rows of an interval
when that has ended, `receive` with messages, and `advance` when the time `due` has come; the site
sends through its `Network` and emits results through a callback. At one moment, ticks come first,
then messages, then `advance`.

The life of an interval at a site: its rows enter the window, rows that no one needs any more leave
it, the copies are told (`Outlets.update`), and the interval's own rows set out on the sequence of
their stream. A message of an interval that has not ended here yet is kept until it has.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.multisite.arrivals import interval_rows
from dovetail.multisite.copies import Copy, Facts, Parts
from dovetail.multisite.matching import join_rows, same_values
from dovetail.multisite.messages import PLANNER, Header, Kind, Message, decode, encode
from dovetail.multisite.network import Network
from dovetail.multisite.oneway import ONE_WAY
from dovetail.multisite.outlets import Outlets
from dovetail.multisite.pace import Heartbeats, Pace, Timed, Wait, no_wait
from dovetail.multisite.plan import PlacedStep, Plan
from dovetail.multisite.query import Query
from dovetail.multisite.reports import Reports
from dovetail.multisite.rows import RowStore
from dovetail.multisite.schedule import Schedule
from dovetail.multisite.snapshots import Kept
from dovetail.multisite.statistics import measure
from dovetail.multisite.waiting import Task, Waiting

Emit = Callable[[int, pa.RecordBatch], None]  #: an interval, and results of it
_WAITING_KINDS = (Kind.PROBE, Kind.KEYS)
_STEP_KINDS = (*_WAITING_KINDS, Kind.ROWS, Kind.FOUND)


class Site(Kept):
    """The part of a distributed join that runs beside one stream."""

    KEPT = (
        "ticked", "next_number", "late", "_backlog", "_rows_since", "_gone_through", "_now",
        "_heard_until", "pace", "schedule", "window", "outlets", "_reports",
    )  # fmt: skip

    def __init__(
        self, name: str, plan: Plan, network: Network, emit: Emit, *,
        heartbeats: bool = False, first_interval: int = 1, statistics_every: int = 0,
        wait: Wait = no_wait,
    ) -> None:  # fmt: skip
        self.name = name
        self.query: Query = plan.query
        self.stream = self.query.stream(name)
        self.schedule = Schedule(plan, first_interval)
        self.window = RowStore(self.stream.qualified, self.stream.time_column)
        self.ticked = first_interval - 1
        self.next_number = 0
        self.late = 0  #: messages and probes that came too late: results may be missing
        self._network = network
        self._emit = emit
        self._pace: Pace = (
            Heartbeats(name, self.schedule.at, first_interval)
            if heartbeats
            else Timed(self.query, self.schedule.at, first_interval, wait)
        )
        self.outlets = Outlets(
            self.query, name, self.window, self.schedule, always=self._pace.reports
        )
        self.copies: dict[str, Copy] = {}
        self.waiting = Waiting()
        self._early: list[Message] = []
        self._backlog: list[pa.RecordBatch] = []  # intervals that wait for a plan to be agreed on
        self._reports = Reports(self.query, name)
        self._statistics_every = statistics_every  # intervals; 0: never
        self._rows_since = 0
        self._gone_through = first_interval - 1  # rows that only these intervals need have left
        self._now = 0
        self._heard_until = -1  # no message that arrived by then is still to be received

    # --- called from outside -------------------------------------------------------------------

    def tick(self, interval: int, rows: pa.RecordBatch | None, now: int) -> None:
        """The rows of an interval, in the order of their times; intervals come one by one.

        Rows that are refused leave the site as it was.
        """
        if interval != self.ticked + len(self._backlog) + 1:
            raise ArgumentError(
                f"site {self.name!r} was given interval {interval} after "
                f"{self.ticked + len(self._backlog)}: every interval, once and in order"
            )
        qualified = interval_rows(self.query, self.stream, interval, rows)
        self._now, self._heard_until = now, now - 1
        self._backlog.append(qualified)
        self._work_off()

    def receive(self, message: Message, now: int) -> None:
        """A message of another site or of the planner."""
        self._now, self._heard_until = now, now - 1
        header = message.header
        sender = self.query.names[header.sender] if header.sender >= 0 else ""
        if header.kind == Kind.PROBE and "probe" not in message.parts:
            # at once, while the copy has the rows that are referred to
            message = Message(header, {"probe": self.copy(sender).probe_rows(message)})
        if header.kind in _WAITING_KINDS and header.interval <= self._gone_through:
            self.late += 1
        if header.kind in _STEP_KINDS and not self.schedule.knows(header.interval):
            return  # counted: just now, or when its rows were given up
        if header.kind in _WAITING_KINDS and header.interval > self.ticked:
            self._early.append(message)
            return
        match header.kind:
            case Kind.UPDATE:
                self.late += self.copy(sender).update(message)
                self._resume()
            case Kind.PROBE:
                self._probed(message)
            case Kind.KEYS:
                step = self._step_of(header)
                ONE_WAY[step.algorithm].asked(self, step, message)
            case Kind.ROWS | Kind.FOUND:
                step = self._step_of(header)
                task = self.waiting.answered(step, header.interval)
                if task is None:  # an answer to no question: whoever sent it is not in order
                    self.late += 1
                    return
                ONE_WAY[step.algorithm].answered(self, step, task, message)
            case Kind.DROP:
                self.copies[sender] = Copy(self.query.stream(sender), header.interval - 1)
            case Kind.PASSED:
                for passed, interval in self._reports.heard(message.array("passed")):
                    self._pace.passed(passed, interval)
            case _:
                self.schedule.receive(message, self.ticked + len(self._backlog), self._reply)
                self._work_off()

    def advance(self, now: int) -> None:
        """Do what was waiting for the time; every message that has arrived by now is in."""
        self._now = self._heard_until = now
        self._resume()

    def due(self) -> int | None:
        """When `advance` has something to do; None if that depends on messages only."""
        times = (self._pace.due(task.interval) for task in self.waiting.for_copies)
        return min((time for time in times if time is not None), default=None)

    @property
    def idle(self) -> bool:
        """Nothing waits here for time or messages."""
        return not (self.waiting or self._early or self._backlog)

    @property
    def nbytes(self) -> int:
        """What is kept here: window and copies, with what finds their rows, and what waits."""
        return (
            self.window.nbytes + self.window.index_bytes
            + sum(copy.nbytes for copy in self.copies.values())
            + self.outlets.nbytes + self.waiting.nbytes
            + sum(int(rows.nbytes) for rows in self._backlog)
            + sum(message.nbytes for message in self._early)
        )  # fmt: skip

    @property
    def settled(self) -> int:
        """The last interval that every step which probes this window is past, with all before it.

        When all sites are past an interval, all of its results have been emitted.
        """
        return self._pace.settled(self.ticked, self._now)

    def complete(self, now: int) -> int:
        """The last interval all of whose results that come out here have, with all before it.

        So it is for a plan of two streams, both of which are joined here.
        """
        settled = self._pace.settled(self.ticked, now)
        return min(settled, self._begun() - 1) if self._pace.reports else settled

    def tick_time(self, interval: int) -> int:
        """When the rows of an interval are all there, by the clock."""
        return self.query.tick_time(interval) + self._pace.wait

    @property
    def delta(self) -> int:
        """The longest delay of a message that is reckoned with; 0 with heartbeats."""
        return self._pace.delta

    @delta.setter
    def delta(self, delta: int) -> None:
        if not self._pace.reports:
            self._pace.delta = delta

    def snapshot(self) -> dict[str, Any]:
        """All that is known here, as data."""
        return {
            **super().snapshot(),
            "copies": {owner: copy.snapshot() for owner, copy in self.copies.items()},
            **self.waiting.snapshot(),
            "early": [encode(message) for message in self._early],
        }

    def restore(self, data: Mapping[str, Any]) -> Self:
        super().restore(data)
        for owner, copy in data["copies"].items():
            self.copy(owner).restore(copy)
        self.waiting.restore(data)
        self._early = [decode(message) for message in data["early"]]
        return self

    # --- an interval ----------------------------------------------------------------------------

    def _work_off(self) -> None:
        while self._backlog and self.schedule.may_tick(self.ticked + 1):
            rows = self._backlog.pop(0)
            self.ticked += 1
            self._tick(self.ticked, rows)
            early, self._early = self._early, []
            for message in early:
                self.receive(message, self._now)

    def _tick(self, interval: int, rows: pa.RecordBatch) -> None:
        start = self.next_number
        numbers = np.arange(start, start + rows.num_rows)
        self.next_number += rows.num_rows
        self.window.append(numbers, rows)
        settled = self._pace.settle(interval - 1, self._now)
        first = self.window.first
        if len(self.window.numbers):
            until = self.query.boundary(settled)
            needed = self.stream.window.first_needed(self.window.times, until)
            first = max(first, int(self.window.numbers[0]) + needed)
        for message in self.outlets.update(interval, settled, start, first):
            self._network.send(message)
        self.window.expire(first)
        self._gone_through = settled
        # with heartbeats the answer that rows wait for is sure to come, and needs their plan
        self.schedule.forget(min(settled, self._begun() - 1) if self._pace.reports else settled)
        self.late += self.waiting.give_up(self.schedule.knows)
        if self.schedule.at(interval).placed[self.name]:
            self.proceed(Task(self.name, 0, interval, rows, numbers))
        self.report()
        self._rows_since += rows.num_rows
        every = self._statistics_every
        if every and interval % every == 0:
            parts = measure(self.query, self.name, self.window, self._rows_since, every)
            self._reply(Kind.STATISTICS, PLANNER, interval, parts)
            self._rows_since = 0

    def _begun(self) -> int:
        """The first interval of which rows are here, on their way to the windows of others."""
        first = self.waiting.first_interval
        return self.ticked + 1 if first is None else first

    # --- for the one-way joins ------------------------------------------------------------------

    def proceed(self, task: Task) -> None:
        """Take rows to the next step of their sequence, or emit them."""
        placed = self.schedule.at(task.interval).placed[task.head]
        if task.index == len(placed):
            if task.rows.num_rows:
                self._emit(task.interval, task.rows.select(self.query.result_columns))
            return
        step = placed[task.index]
        if task.rows.num_rows:
            for left, right in step.key.same:
                task = task.reduced(same_values(task.rows, left, right))
        if task.rows.num_rows:
            ONE_WAY[step.algorithm].start(self, step, task)
        else:
            self.finish(step, task)

    def finish(self, step: PlacedStep, task: Task) -> None:
        """No rows are left for this step, nor for those after it."""
        plan = self.schedule.at(task.interval)
        for later in plan.placed[task.head][step.index :]:
            self._passed(later, task.interval)

    def when_copied(self, step: PlacedStep, task: Task) -> None:
        """Go on when the copy has all rows of the interval (constraint 1)."""
        copy = self.copies.get(step.stream)
        through = copy.through if copy else None
        if self._pace.ready(through, task.interval, self._heard_until):
            self.late += self.copy(step.stream).begin_probe(task.interval)
            ONE_WAY[step.algorithm].copied(self, step, task)
        else:
            self.waiting.for_copies.append(task)

    def copy(self, owner: str) -> Copy:
        if owner not in self.copies:
            self.copies[owner] = Copy(self.query.stream(owner))
        return self.copies[owner]

    def send(
        self, kind: Kind, to: str, step: PlacedStep, interval: int, parts: Parts,
        facts: Facts | None = None,
    ) -> None:  # fmt: skip
        me, receiver, head = (self.query.rank(name) for name in (self.name, to, step.head))
        header = Header(kind, me, receiver, head, step.index, interval=interval)
        self._network.send(Message(replace(header, **(facts or {})), parts))  # type: ignore[arg-type]

    def send_rows(self, step: PlacedStep, task: Task) -> None:
        """Send rows to the window they are to be joined with."""
        if not task.rows.num_rows:
            self.finish(step, task)
            return
        outlet = self.outlets.of(step.stream)
        numbers = task.numbers
        parts: Parts
        facts: Facts
        if outlet is not None and numbers is not None and outlet.shares(numbers):
            parts, facts = outlet.probe_rows(numbers)
        else:
            parts, facts = {"probe": task.rows}, {}
        self.send(Kind.PROBE, step.stream, step, task.interval, parts, facts)

    def join_copy(self, step: PlacedStep, task: Task) -> None:
        """Join at the source, with the copy."""
        copy = self.copy(step.stream)
        rows = join_rows(self.query, step, task.rows, copy.store, copy.clock)
        self._joined(step, task.interval, rows)

    # --- inside ---------------------------------------------------------------------------------

    def _probed(self, message: Message) -> None:
        """Join at the destination, with the window."""
        step = self._step_of(message.header)
        store = self.window
        clock = (int(store.numbers[0]) if len(store.numbers) else 0, store.times)
        joined = join_rows(self.query, step, message.parts["probe"], store, clock)
        self._joined(step, message.header.interval, joined)

    def _joined(self, step: PlacedStep, interval: int, rows: pa.RecordBatch) -> None:
        self._passed(step, interval)
        self.proceed(Task(step.head, step.index + 1, interval, rows))

    def _resume(self) -> None:
        for task in self.waiting.take_for_copies():
            self.when_copied(self._step(task.interval, task.head, task.index), task)

    def _step_of(self, header: Header) -> PlacedStep:
        return self._step(header.interval, self.query.names[header.head], header.step)

    def _step(self, interval: int, head: str, index: int) -> PlacedStep:
        return self.schedule.at(interval).placed[head][index]

    def _passed(self, step: PlacedStep, interval: int) -> None:
        """A step is done with an interval; its stream's site must hear of it, sooner or later."""
        if not self._pace.reports:
            return
        if step.stream == self.name:
            self._pace.passed((step.head, step.index), interval)
        else:
            self._reports.add(step, interval)

    def report(self) -> bool:
        """Tell the owners of windows what is done with; whether there was something to tell.

        It is done as an interval ends. Whoever lets none end for now has to call it, or sites could
        wait for each other.
        """
        messages = self._reports.take(self.ticked)
        for message in messages:
            self._network.send(message)
        return bool(messages)

    def _reply(self, kind: Kind, to: int, interval: int, parts: Parts) -> None:
        header = Header(kind, self.query.rank(self.name), to, interval=interval)
        self._network.send(Message(header, parts))
