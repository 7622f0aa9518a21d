"""Choosing a plan for a query, and what it looks like."""

import time
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from dovetail.cli.sitefile import QueryFile
from dovetail.cli.siteinputs import first_time, statistics
from dovetail.errors import JobFileError
from dovetail.kernel.memory import format_bytes
from dovetail.sites.costs import CostModel
from dovetail.sites.live.deployment import UNITS, Deployment, prices_of
from dovetail.sites.plan import Plan
from dovetail.sites.planner import algorithm_10, exhaustive, greedy, joint

_PLANNERS = {
    "joint": joint, "greedy": greedy, "algorithm-10": algorithm_10, "exhaustive": exhaustive,
}  # fmt: skip
_INTERVALS_AHEAD = 2  # a query that goes by the clock begins when all sites have heard of it


def choose(file: QueryFile) -> Plan:
    """The plan that the file asks for."""
    part = file.plan
    if part.fixed is not None:
        return part.fixed
    model = CostModel(file.query, statistics(file), prices_of(file.shapes, file.second))
    return _PLANNERS[part.planner](model, part.algorithms)


def deployment(file: QueryFile, plan: Plan, addresses: Mapping[str, str]) -> Deployment:
    """The query as it is handed out, to begin soon."""
    if missing := [host for host in file.hosts if host not in addresses]:
        raise JobFileError(
            f"{file.file}: there is no [sites.{missing[0]}] with an address; or start all sites on "
            "this machine with --local"
        )
    tau = file.query.tau
    if file.clock == "wall":
        first = time.time_ns() // UNITS[file.unit] // tau + 1 + _INTERVALS_AHEAD
    else:
        first = first_time(file) // tau + 1
    return Deployment(
        name=file.name,
        plan=plan,
        addresses={host: addresses[host] for host in file.hosts},
        clock=file.clock,
        unit=file.unit,
        heartbeats=file.heartbeats,
        first_interval=first,
        ahead=file.ahead,
        replan_every=file.plan.replan_every,
        algorithms=file.plan.algorithms,
        shapes=file.shapes,
    )


def print_plan(console: Console, file: QueryFile, plan: Plan) -> None:
    """The sequences of a plan, and the bytes it will send if the statistics are right."""
    table = Table(box=box.SIMPLE_HEAD, title=f"Plan of {file.name}", title_justify="left")
    table.add_column("rows of")
    table.add_column("at")
    table.add_column("are joined with")
    for head, steps in plan.sequences.items():
        way = ", then ".join(f"{step.stream} by {step.algorithm}" for step in steps)
        table.add_row(head, file.query.stream(head).site, way)
    console.print(table)
    try:
        known = statistics(file)
    except JobFileError:
        console.print("Nothing is known of the streams, so neither of what will be sent.")
        return
    cost = CostModel(file.query, known, prices_of(file.shapes, file.second)).plan(plan)
    sent = format_bytes(round(cost.nbytes * file.second))
    console.print(f"Expected: {sent} and {cost.messages * file.second:.1f} messages a second.")
