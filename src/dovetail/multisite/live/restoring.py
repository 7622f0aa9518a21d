"""A host's part of a query as it was: from its journal, which must be whole, and its results."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from dovetail.errors import StateCorruptError
from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.events import Event
from dovetail.multisite.live.folders import corrupt
from dovetail.multisite.live.journal import Journal
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.live.machine import Machine
from dovetail.multisite.live.outbox import Outbox
from dovetail.multisite.live.results import ResultLog

_log = logging.getLogger(__name__)


def journal_of(deployment: Deployment, host: str, directory: Path, limits: Limits) -> Journal:
    """The journal of a host's part of a query."""
    return Journal(
        directory, deployment.digest, host, durable=limits.durable,
        snapshot_bytes=limits.snapshot_bytes,
    )  # fmt: skip


def restored(
    deployment: Deployment, host: str, journal: Journal, results: ResultLog,
    outboxes: Mapping[str, Outbox], release: Callable[[Machine], None],
) -> Machine:  # fmt: skip
    """The machine as the snapshot has it, after the events since; the journal is open then.

    `release` lets out what the events make again: messages that were not acknowledged, and results,
    which have to be those that are there.
    """
    if not journal.is_new:
        journal.check()
    where = f"query {deployment.name!r} at {host!r}"
    machine = Machine(deployment, host)
    state = journal.load()
    try:
        if state is not None:
            machine.restore(state["machine"])
        for other, outbox in outboxes.items():
            kept = state["kept"][other] if state is not None else []
            outbox.restore(machine.sent[other], [(seq, body) for seq, body in kept])
    except Exception as error:
        raise _refused(where, "its snapshot", journal, error) from error
    count = 0
    for event, outputs in journal.replay():
        _repeat(machine, event, outputs, f"event {count}", journal, where)
        release(machine)
        count += 1
    if results.last != machine.result_count:
        raise corrupt(
            f"the results of {where} end with number {results.last}, but those that follow from "
            f"the journal beside them with {machine.result_count}: one of the two is cut off or of "
            "another time"
        )
    if state or count:
        _log.info(
            "%s goes on from its journal: %d events, %d results", where, count, machine.result_count
        )
    journal.open()
    return machine


def _repeat(
    machine: Machine, event: Event, outputs: int, what: str, journal: Journal, where: str
) -> None:
    if outputs != machine.outputs:
        raise StateCorruptError(
            f"{what} of the journal of {where} came after {outputs} messages and results, but now "
            f"there are {machine.outputs}: another version wrote it. Use that one, or stop the "
            "query at all sites and start it anew."
        )
    try:
        machine.apply(event)
    except Exception as error:
        raise _refused(where, what, journal, error) from error


def _refused(where: str, what: str, journal: Journal, error: Exception) -> StateCorruptError:
    return corrupt(
        f"{where} cannot go on: {what} in {journal.path} cannot be taken in "
        f"({type(error).__name__}: {error})"
    )
