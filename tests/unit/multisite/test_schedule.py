"""Agreeing on a plan: who may go on, and what happens when a site is too far."""

import pyarrow as pa

from dovetail.multisite.messages import PLANNER, text
from dovetail.multisite.schedule import Schedule
from dovetail.sites import (
    Algorithm,
    Header,
    Kind,
    Message,
    Plan,
    Planner,
    Prices,
    Query,
    Step,
    Stream,
    TimeWindow,
)

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64())])
QUERY = Query(tuple(Stream(n, SCHEMA, TimeWindow(5)) for n in "AB"), (("A.k", "B.k"),), 10, 5)


def plan(algorithm: Algorithm) -> Plan:
    return Plan(QUERY, {"A": [Step("B", algorithm)], "B": [Step("A", algorithm)]})


OLD, NEW = plan(Algorithm.SP_D), plan(Algorithm.SM_S1)


class Outbox:
    """A network that keeps what is sent, and a site's way to reply."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def reply(self, kind: Kind, to: int, interval: int, parts: dict[str, pa.RecordBatch]) -> None:
        self.send(Message(Header(kind, 0, to, interval=interval), parts))


def prepare(interval: int) -> Message:
    header = Header(Kind.PREPARE, PLANNER, 0, interval=interval)
    return Message(header, {"plan": text(NEW.to_json())})


def commit(interval: int, accepted: bool) -> Message:
    return Message(Header(Kind.COMMIT, PLANNER, 0, accepted=accepted, interval=interval))


def test_schedule_when_prepared_then_holds_at_the_interval_until_the_commit() -> None:
    schedule, outbox = Schedule(OLD, 1), Outbox()
    schedule.receive(prepare(7), 5, outbox.reply)
    assert [m.header.kind for m in outbox.sent] == [Kind.READY]
    assert not outbox.sent[0].parts
    assert schedule.may_tick(6)
    assert not schedule.may_tick(7)
    schedule.receive(commit(7, accepted=True), 6, outbox.reply)
    assert schedule.may_tick(7)
    assert (schedule.at(6), schedule.at(7)) == (OLD, NEW)
    assert list(schedule.between(3, 6)) == [OLD]
    assert list(schedule.between(6, 9)) == [OLD, NEW]


def test_schedule_when_all_old_intervals_are_over_then_forgets_their_plan() -> None:
    schedule, outbox = Schedule(OLD, 1), Outbox()
    schedule.receive(prepare(7), 5, outbox.reply)
    schedule.receive(commit(7, accepted=True), 6, outbox.reply)
    schedule.forget(6)
    assert schedule.knows(6)
    schedule.forget(7)
    assert not schedule.knows(6)
    assert schedule.at(7) == NEW


def test_schedule_when_already_past_the_interval_then_says_where_it_is_and_goes_on() -> None:
    schedule, outbox = Schedule(OLD, 1), Outbox()
    schedule.receive(prepare(7), 9, outbox.reply)
    assert outbox.sent[0].array("reached").tolist() == [9]
    assert schedule.may_tick(10)


def test_schedule_when_the_change_is_called_off_then_goes_on_with_the_old_plan() -> None:
    schedule, outbox = Schedule(OLD, 1), Outbox()
    schedule.receive(prepare(7), 5, outbox.reply)
    schedule.receive(commit(7, accepted=False), 6, outbox.reply)
    assert schedule.may_tick(7)
    assert schedule.at(7) == OLD


def ready(site: int, interval: int, reached: int | None = None) -> Message:
    schedule, outbox = Schedule(OLD, 1), Outbox()
    schedule.receive(prepare(interval), interval - 1 if reached is None else reached, outbox.reply)
    (answer,) = outbox.sent
    return Message(Header(Kind.READY, site, PLANNER, interval=interval), answer.parts)


def test_planner_when_a_site_is_too_far_then_calls_off_and_proposes_a_later_interval() -> None:
    network = Outbox()
    planner = Planner(OLD, network, Prices())
    planner.change(NEW, now=30)
    first = network.sent[-1].header.interval
    assert first * QUERY.tau >= 30 + 3 * QUERY.delta  # all three messages can be there in time
    planner.receive(ready(0, first), 40)
    assert planner.plan == OLD
    planner.receive(ready(1, first, reached=first + 2), 70)
    kinds = [m.header.kind for m in network.sent]
    assert kinds == [Kind.PREPARE] * 2 + [Kind.COMMIT] * 2 + [Kind.PREPARE] * 2
    assert not network.sent[2].header.accepted
    second = network.sent[-1].header.interval
    assert second > first + 2
    for site in (0, 1):
        planner.receive(ready(site, second), 90)
    assert network.sent[-1].header.kind == Kind.COMMIT
    assert network.sent[-1].header.accepted
    assert planner.changes == [(second, NEW)]
    assert planner.plan == NEW


def test_planner_when_asked_during_a_change_then_makes_the_second_one_afterwards() -> None:
    network = Outbox()
    planner = Planner(OLD, network, Prices())
    third = plan(Algorithm.SM_D2)
    planner.change(NEW, now=30)
    planner.change(third, now=31)
    first = network.sent[-1].header.interval
    assert len(network.sent) == 2
    for site in (0, 1):
        planner.receive(ready(site, first), 40)
    assert network.sent[-1].header.kind == Kind.PREPARE
    assert network.sent[-1].header.interval > first
    assert Plan.from_json(QUERY, network.sent[-1].parts["plan"][0][0].as_py()) == third
