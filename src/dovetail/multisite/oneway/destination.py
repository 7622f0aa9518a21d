"""Joins at the destination, with the window itself: SP-D, SM-D1 and SM-D2."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dovetail.multisite.compact import found_keys, found_parts
from dovetail.multisite.entries import distinct
from dovetail.multisite.messages import Kind, Message, column
from dovetail.multisite.oneway.base import OneWay, Task, keyed
from dovetail.multisite.plan import PlacedStep

if TYPE_CHECKING:
    from dovetail.multisite.site import Site


class SPD(OneWay):
    """SP-D (Algorithm 2): every row is sent to the window."""

    def start(self, site: "Site", step: PlacedStep, task: Task) -> None:
        site.send_rows(step, task)


class SMD1(OneWay):
    """SM-D1 (Algorithm 5): the source knows all keys of the window, and sends rows that match.

    With `bloom`, it knows a filter of the keys, which the owner makes anew for every interval.
    """

    def __init__(self, bloom: bool = False) -> None:
        self._bloom = bloom

    def start(self, site: "Site", step: PlacedStep, task: Task) -> None:
        site.when_copied(step, task)

    def copied(self, site: "Site", step: PlacedStep, task: Task) -> None:
        task, codes = keyed(task, step)
        copy = site.copy(step.stream)
        if self._bloom:
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
        task, codes = keyed(task, step)
        keys = distinct(codes)
        if not len(keys):
            site.finish(step, task)
            return
        site.park(replace(task, asked=keys))
        site.send(Kind.KEYS, step.stream, step, task.interval, {"keys": column(keys)})

    def asked(self, site: "Site", step: PlacedStep, message: Message) -> None:
        keys = message.array("keys")
        found = np.zeros(len(keys), dtype=np.bool_)
        found[site.window.probe(step.stored, keys)[0]] = True
        parts = found_parts(keys, found, site.query.compact)
        site.send(Kind.FOUND, step.source, step, message.header.interval, parts)

    def answered(self, site: "Site", step: PlacedStep, task: Task, message: Message) -> None:
        _, codes = keyed(task, step)
        assert task.asked is not None
        site.send_rows(step, task.reduced(np.isin(codes, found_keys(message, task.asked))))
