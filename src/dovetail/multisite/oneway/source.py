"""Joins at the source, with a copy of the other's window: SP-S, SM-S1 and SM-S2."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dovetail.multisite.bloom import ASKING_ERROR, Bloom
from dovetail.multisite.copies import Facts, Parts
from dovetail.multisite.entries import distinct
from dovetail.multisite.messages import Kind, Message, column
from dovetail.multisite.oneway.base import OneWay, Task, keyed
from dovetail.multisite.plan import PlacedStep

if TYPE_CHECKING:
    from dovetail.multisite.site import Site


class SPS(OneWay):
    """SP-S (Algorithm 1): the owner sends every row to the source, which has `W2@N1`."""

    def start(self, site: "Site", step: PlacedStep, task: Task) -> None:
        site.when_copied(step, task)

    def copied(self, site: "Site", step: PlacedStep, task: Task) -> None:
        site.join_copy(step, task)


class SMS1(OneWay):
    """SM-S1 (Algorithm 3): the source asks for the rows of its keys; the copy is `W'2`.

    With `bloom`, it asks with a filter of its keys.
    """

    def __init__(self, bloom: bool = False) -> None:
        self._bloom = bloom

    def start(self, site: "Site", step: PlacedStep, task: Task) -> None:
        task, codes = keyed(task, step)
        keys = distinct(codes)
        if not len(keys):
            site.finish(step, task)
            return
        site.park(task)
        if self._bloom:
            size = column(np.array([len(keys)]))
            parts = {"bloom": Bloom.of(keys, ASKING_ERROR).part(), "size": size}
        else:
            parts = {"keys": column(keys)}
        site.send(Kind.KEYS, step.stream, step, task.interval, parts)

    def asked(self, site: "Site", step: PlacedStep, message: Message) -> None:
        outlet = site.outlet(step.source)
        parts: Parts = {}
        facts: Facts = {}
        if outlet is None:
            pass  # a message took too long, and the plan has changed since
        elif self._bloom:
            bloom = Bloom.received(message.parts["bloom"], int(message.array("size")[0]))
            parts, facts = outlet.request_bloom(step.stored, bloom)
        else:
            parts, facts = outlet.request(step.stored, message.array("keys"), fill=False)
        site.send(Kind.ROWS, step.source, step, message.header.interval, parts, facts)

    def answered(self, site: "Site", step: PlacedStep, task: Task, message: Message) -> None:
        site.copy(step.stream).add_rows(message)
        site.join_copy(step, task)


class SMS2(OneWay):
    """SM-S2 (Algorithm 4): the source knows all keys, and asks for rows of those that match.

    The copy is `M2`: keys, and the rows of the keys that were ever asked for. The paper joins with
    the rows that are there before it asks for the others (line 3), so as not to scan the rows of
    the source twice; here an index is probed, once, when the answer has come.
    """

    def start(self, site: "Site", step: PlacedStep, task: Task) -> None:
        site.when_copied(step, task)

    def copied(self, site: "Site", step: PlacedStep, task: Task) -> None:
        task, codes = keyed(task, step)
        entries = site.copy(step.stream).entries_of(step.stored)
        found = entries.contains(codes)
        task = task.reduced(found)
        if not task.rows.num_rows:
            site.finish(step, task)
            return
        missing = entries.unfilled(codes[found])
        if not len(missing):
            site.join_copy(step, task)
            return
        site.park(replace(task, asked=missing))
        site.send(Kind.KEYS, step.stream, step, task.interval, {"keys": column(missing)})

    def asked(self, site: "Site", step: PlacedStep, message: Message) -> None:
        outlet = site.outlet(step.source)
        keys = message.array("keys")
        parts, facts = outlet.request(step.stored, keys, fill=True) if outlet else ({}, {})
        site.send(Kind.ROWS, step.source, step, message.header.interval, parts, facts)

    def answered(self, site: "Site", step: PlacedStep, task: Task, message: Message) -> None:
        copy = site.copy(step.stream)
        copy.add_rows(message)
        assert task.asked is not None
        copy.entries_of(step.stored).fill(task.asked)
        site.join_copy(step, task)
