"""Running a query over sites: starting them here, sending rows, watching."""

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.live import Live

from dovetail.cli.site.file import QueryFile
from dovetail.cli.site.inputs import Feed, feed
from dovetail.cli.site.plan import deployment
from dovetail.cli.site.views import (
    complaint,
    left_out,
    live_view,
    refusals,
    sample_table,
    settled,
    status_tables,
)
from dovetail.cli.views import announce
from dovetail.errors import DovetailError, SiteAccessError, SiteError, SiteUnavailableError
from dovetail.kernel.memory import format_bytes
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.client import SiteClient, Status
from dovetail.multisite.live.deployment import UNITS, Deployment
from dovetail.multisite.live.local import LocalSites
from dovetail.multisite.tree import AnyPlan, plan_of_json

_LOCAL_INTERVALS = 20
_LOOK_SECONDS = 0.25
_START_SECONDS = 60.0
_PRODUCER = "dovetail site run"
_SHOWN_ROWS = 5


def run_local(
    console: Console, file: QueryFile, plan: AnyPlan, intervals: int | None, out: Path | None,
    state: Path | None,
) -> None:  # fmt: skip
    """Start every site here, run the query until its input ends, and stop them."""
    made_up = any(part.kind == "made-up" for part in file.inputs.values())
    if intervals is None and made_up:
        intervals = _LOCAL_INTERVALS
    with contextlib.ExitStack() as stack:
        if state is None:
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dovetail-")))
        sites = LocalSites(state, file.hosts)
        stack.callback(sites.stop)
        with announce(console, f"Starting {len(file.hosts)} sites, plain connections on loopback"):
            for host in file.hosts:
                sites.start(host)
            addresses = sites.addresses()
        handed = deployment(file, plan, addresses)
        carry_out(console, Run(file, handed, sites.access), intervals, out)


def carry_out(console: Console, runs: "Run", intervals: int | None, out: Path | None) -> None:
    """Hand the query out to its sites, which are served, and watch it."""
    try:
        runs.start()
        watch(console, runs, intervals)
        _conclude(console, runs, out)
    finally:
        runs.close()


def check_tokens(clients: Mapping[str, SiteClient]) -> None:
    """Wait until all sites answer; if some do not let us in, say which do and which do not."""
    shut: dict[str, SiteAccessError] = {}
    for host, client in clients.items():
        try:
            client.wait_until_there(_START_SECONDS)
        except SiteAccessError as error:
            shut[host] = error
    if not shut:
        return
    others = ", ".join(repr(host) for host in clients if host not in shut)
    problem = "; ".join(f"{host!r}: {error}" for host, error in shut.items())
    if others:
        problem += f". {others} let us in: all sites of a query need the same token"
    raise SiteAccessError(f"not all sites let us in. {problem}")


class Run:
    """A query at its sites, seen from the query node."""

    def __init__(self, file: QueryFile, handed: Deployment, access: Access) -> None:
        self.file = file
        self.deployment = handed
        self.clients = {h: SiteClient(a, access) for h, a in handed.addresses.items()}
        self.errors: list[DovetailError] = []
        self.started = time.monotonic()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        check_tokens(self.clients)
        self._adopt()
        for client in self.clients.values():
            client.start(self.deployment)

    def _adopt(self) -> None:
        """A query that runs already keeps its plan and its first interval."""
        name = self.deployment.name
        running = next((c for c in self.clients.values() if name in c.queries()), None)
        if running is None:
            return
        found = running.describe(name).deployment
        plan = plan_of_json(self.deployment.query, found.plan.to_json())
        same = replace(
            self.deployment, plan=plan, first_interval=found.first_interval, shapes=found.shapes
        )
        if same.digest != found.digest:
            raise SiteError(
                f"another query that is called {name!r} runs at {running.address}: end it with "
                "dovetail site stop, or give this one another name"
            )
        self.deployment = same

    def client_of(self, stream: str) -> SiteClient:
        return self.clients[self.deployment.query.stream(stream).site]

    def send(self, intervals: int | None) -> int | None:
        """Send the rows of all inputs; returns the last interval of them, if there is one."""
        first = self.deployment.first_interval
        if self.deployment.clock == "wall":  # the query may have been running for long
            now = time.time_ns() // UNITS[self.deployment.unit]
            first = max(first, now // self.deployment.query.tau + 1)
        feeds = {n: feed(self.file, n, first, intervals) for n in self.deployment.query.names}
        lasts = [f.last_interval for f in feeds.values() if f is not None]
        for name, rows in feeds.items():
            if rows is not None:
                thread = threading.Thread(target=self._send, args=(name, rows), daemon=True)
                self._threads.append(thread)
                thread.start()
        known = [last for last in lasts if last is not None]
        return max(known) if known and len(known) == len(lasts) else None

    def _send(self, name: str, rows: Feed) -> None:
        query, client = self.deployment.query, self.client_of(name)
        by_rows = self.deployment.clock == "rows"
        try:
            for interval, batch in enumerate(rows.rows, rows.first_interval):
                if not by_rows:
                    self._sleep_until(query.boundary(interval - 1))
                if self._stop.is_set():
                    return
                until = query.boundary(interval) if by_rows else None
                client.put(
                    self.deployment.name, name, batch, producer=_PRODUCER, batch=interval,
                    until=until, timeout=600,
                )  # fmt: skip
        except DovetailError as error:
            self.errors.append(error)

    def _sleep_until(self, moment: int) -> None:
        left = moment * UNITS[self.deployment.unit] / 1e9 - time.time()
        if left > 0:
            self._stop.wait(left)

    @property
    def sending(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def statuses(self) -> dict[str, Status]:
        return {h: client.status(self.deployment.name) for h, client in self.clients.items()}

    def go_on(self, statuses: Mapping[str, Status], last: int) -> None:
        """Let time pass after the last row, until all is done that follows from it."""
        if self.deployment.clock == "rows":
            reached = max(s.ticked for st in statuses.values() for s in st.streams.values())
            until = self.deployment.query.boundary(max(reached, last) + 1)
            for name in self.deployment.query.names:
                self.client_of(name).advance(self.deployment.name, name, until)

    def results(self) -> Iterator[pa.RecordBatch]:
        for client in self.clients.values():
            first, _ = client.result_range(self.deployment.name)
            for result in client.results(self.deployment.name, after=first - 1):
                yield result.rows

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(5)
        for client in self.clients.values():
            client.close()


def watch(console: Console, runs: Run, intervals: int | None) -> None:
    """Until all results of the input are there, or Ctrl-C."""
    last = runs.send(intervals)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        live = stack.enter_context(Live(console=console)) if console.is_terminal else None
        while True:
            try:
                statuses = runs.statuses()
            except SiteUnavailableError:
                if last is not None:
                    raise
                time.sleep(_LOOK_SECONDS)  # a site of a long query is being started again
                continue
            if live is not None:
                live.update(live_view(statuses, time.monotonic() - runs.started))
            _complain(runs, statuses)
            if last is not None and not runs.sending:
                if settled(statuses) >= last:
                    return
                runs.go_on(statuses, last)
            time.sleep(_LOOK_SECONDS if last is None or runs.deployment.clock == "wall" else 0.05)


def _complain(runs: Run, statuses: Mapping[str, Status]) -> None:
    if runs.errors:
        raise runs.errors[0]
    for host, status in statuses.items():
        if status.error:
            raise SiteError(f"the site {host!r} has failed: {status.error}")
    if problem := refusals(statuses):
        raise SiteError(problem)


def _conclude(console: Console, runs: Run, out: Path | None) -> None:
    """Report what was shipped and found; an error if some of it may be missing."""
    statuses = runs.statuses()
    for table in status_tables(statuses):
        console.print(table)
    links = [link for status in statuses.values() for link in status.links.values()]
    streams = [(n, s) for status in statuses.values() for n, s in status.streams.items()]
    rows = sum(s.rows for n, s in streams if n in runs.deployment.query.names)
    found = sum(status.result_rows for status in statuses.values())
    seconds = time.monotonic() - runs.started
    console.print(
        f"{rows:,} rows in, {found:,} results in {seconds:.1f} s; "
        f"{format_bytes(sum(link.nbytes for link in links))} shipped in "
        f"{sum(link.messages for link in links):,} messages, "
        f"{format_bytes(sum(link.wire_bytes for link in links))} as they travel."
    )
    if out is not None:
        with pq.ParquetWriter(out, runs.deployment.query.result_schema) as writer:
            for batch in runs.results():
                writer.write_batch(batch)
        console.print(f"Results are in {out}.")
    elif found:
        console.print(sample_table(next(runs.results()).slice(0, _SHOWN_ROWS), console.width))
    if notice := left_out(statuses):
        console.print(notice)
    if problem := complaint(statuses):
        raise SiteError(problem)
