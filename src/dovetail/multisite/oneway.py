"""The one-way joins: how rows at a source meet the window of a stream at a destination.

An algorithm has no state of its own. It is called where something happens: `start` at the source,
with rows; `copied` there, when the copy that they wait for is complete; `asked` at the destination,
with keys; `answered` at the source again. Rows that wait for an answer are kept at the site. Each
ends in `Site.join_copy`, a join at the source with a copy of the other's window (SP-S, SM-S1,
SM-S2), or in a message `PROBE`, upon which the destination joins with the window itself (SP-D,
SM-D1, SM-D2).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dovetail.kernel.keys import Codes
from dovetail.multisite.bloom import ASKING_ERROR, Bloom
from dovetail.multisite.compact import found_keys, found_parts
from dovetail.multisite.copies import Facts, Parts
from dovetail.multisite.entries import distinct
from dovetail.multisite.matching import probe_codes
from dovetail.multisite.messages import Kind, Message, column
from dovetail.multisite.plan import Algorithm, PlacedStep
from dovetail.multisite.waiting import Task

if TYPE_CHECKING:
    from dovetail.multisite.site import Site


def _keyed(task: Task, step: PlacedStep) -> tuple[Task, Codes]:
    """The rows that have a key, and their codes."""
    codes, valid = probe_codes(step, task.rows)
    if valid is None:
        return task, codes
    return task.reduced(valid), codes[valid]


def _ask(site: "Site", step: PlacedStep, task: Task, parts: Parts) -> None:
    """Send keys to the destination, and keep the rows until the answer comes."""
    site.waiting.for_answer(task)
    site.send(Kind.KEYS, step.stream, step, task.interval, parts)


class OneWay:
    """One algorithm. Unless it says otherwise, rows wait until the copy is complete."""

    def start(self, site: "Site", step: PlacedStep, task: Task) -> None:
        """At the source: rows have come, at least one."""
        site.when_copied(step, task)

    def copied(self, site: "Site", step: PlacedStep, task: Task) -> None:
        """At the source: the copy that the rows wait for is complete."""
        raise AssertionError(f"{step.algorithm} waits for no copy")

    def asked(self, site: "Site", step: PlacedStep, message: Message) -> None:
        """At the destination: keys have come."""
        raise AssertionError(f"{step.algorithm} sends no keys")

    def answered(self, site: "Site", step: PlacedStep, task: Task, message: Message) -> None:
        """At the source: the answer has come."""
        raise AssertionError(f"{step.algorithm} expects no answer")


class SPS(OneWay):
    """SP-S (Algorithm 1): the owner sends every row to the source, which has `W2@N1`."""

    def copied(self, site: "Site", step: PlacedStep, task: Task) -> None:
        site.join_copy(step, task)


class SPD(OneWay):
    """SP-D (Algorithm 2): every row is sent to the window."""

    def start(self, site: "Site", step: PlacedStep, task: Task) -> None:
        site.send_rows(step, task)


class _OnRequest(OneWay):
    """The owner sends the rows of keys that it is asked for, and the source joins with its copy."""

    def asked(self, site: "Site", step: PlacedStep, message: Message) -> None:
        outlet = site.outlets.of(step.source)
        parts: Parts = {}
        facts: Facts = {}
        if outlet is None:
            pass  # a message took too long, and the plan has changed since
        elif step.algorithm.bloom:
            bloom = Bloom.received(message.parts["bloom"], int(message.array("size")[0]))
            parts, facts = outlet.request_bloom(step.stored, bloom)
        else:
            fill = step.algorithm is Algorithm.SM_S2
            parts, facts = outlet.request(step.stored, message.array("keys"), fill)
        site.send(Kind.ROWS, step.source, step, message.header.interval, parts, facts)

    def answered(self, site: "Site", step: PlacedStep, task: Task, message: Message) -> None:
        copy = site.copy(step.stream)
        copy.add_rows(message)
        if task.asked is not None:
            copy.entries_of(step.stored).fill(task.asked)
        site.join_copy(step, task)


class SMS1(_OnRequest):
    """SM-S1 (Algorithm 3): the source asks for the rows of its keys; the copy is `W'2`.

    SM-S1B asks with a filter of its keys.
    """

    def start(self, site: "Site", step: PlacedStep, task: Task) -> None:
        task, codes = _keyed(task, step)
        keys = distinct(codes)
        if not len(keys):
            site.finish(step, task)
        elif step.algorithm.bloom:
            size = column(np.array([len(keys)]))
            _ask(site, step, task, {"bloom": Bloom.of(keys, ASKING_ERROR).part(), "size": size})
        else:
            _ask(site, step, task, {"keys": column(keys)})


class SMS2(_OnRequest):
    """SM-S2 (Algorithm 4): the source knows all keys, and asks for rows of those that match.

    The copy is `M2`: keys, and the rows of the keys that were ever asked for. The paper joins with
    the rows that are there before it asks for the others (line 3), so as not to scan the rows of
    the source twice; here an index is probed, once, when the answer has come.
    """

    def copied(self, site: "Site", step: PlacedStep, task: Task) -> None:
        task, codes = _keyed(task, step)
        entries = site.copy(step.stream).entries_of(step.stored)
        found = entries.contains(codes)
        task = task.reduced(found)
        missing = entries.unfilled(codes[found])
        if not task.rows.num_rows:
            site.finish(step, task)
        elif not len(missing):
            site.join_copy(step, task)
        else:
            _ask(site, step, replace(task, asked=missing), {"keys": column(missing)})


class SMD1(OneWay):
    """SM-D1 (Algorithm 5): the source knows all keys of the window, and sends rows that match.

    For SM-D1B it knows a filter of the keys, which the owner makes anew for every interval.
    """

    def copied(self, site: "Site", step: PlacedStep, task: Task) -> None:
        task, codes = _keyed(task, step)
        copy = site.copy(step.stream)
        if step.algorithm.bloom:
            bloom = copy.bloom_of(step.stored)
            found = np.zeros(len(codes), dtype=np.bool_) if bloom is None else bloom.contains(codes)
        else:
            found = copy.entries_of(step.stored).contains(codes)
        site.send_rows(step, task.reduced(found))


class SMD2(OneWay):
    """SM-D2 (Algorithm 6): the source asks which of its keys occur, and sends their rows.

    The paper keeps the matching rows of the window aside (`Temp`) so as not to scan the window
    twice; here both are probes of its index.
    """

    def start(self, site: "Site", step: PlacedStep, task: Task) -> None:
        task, codes = _keyed(task, step)
        keys = distinct(codes)
        if len(keys):
            _ask(site, step, replace(task, asked=keys), {"keys": column(keys)})
        else:
            site.finish(step, task)

    def asked(self, site: "Site", step: PlacedStep, message: Message) -> None:
        keys = message.array("keys")
        found = np.zeros(len(keys), dtype=np.bool_)
        found[site.window.probe(step.stored, keys)[0]] = True
        parts = found_parts(keys, found, site.query.compact)
        site.send(Kind.FOUND, step.source, step, message.header.interval, parts)

    def answered(self, site: "Site", step: PlacedStep, task: Task, message: Message) -> None:
        _, codes = _keyed(task, step)
        assert task.asked is not None
        site.send_rows(step, task.reduced(np.isin(codes, found_keys(message, task.asked))))


_SM_S1, _SM_D1 = SMS1(), SMD1()
ONE_WAY: dict[Algorithm, OneWay] = {
    Algorithm.SP_S: SPS(),
    Algorithm.SP_D: SPD(),
    Algorithm.SM_S1: _SM_S1,
    Algorithm.SM_S1B: _SM_S1,
    Algorithm.SM_S2: SMS2(),
    Algorithm.SM_D1: _SM_D1,
    Algorithm.SM_D1B: _SM_D1,
    Algorithm.SM_D2: SMD2(),
}
