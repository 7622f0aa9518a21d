"""Chooses a plan for a query over sites, and shows it."""

import time
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from dovetail.cli.site.file import QueryFile
from dovetail.cli.site.inputs import first_time, statistics
from dovetail.errors import JobFileError
from dovetail.kernel.memory import format_bytes
from dovetail.multisite.costs import Cost, CostModel
from dovetail.multisite.live.deployment import UNITS, Deployment, check_plan, prices_of
from dovetail.multisite.planner import algorithm_10, exhaustive, greedy, joint
from dovetail.multisite.tree import AnyPlan, TreePlan, levels_of
from dovetail.multisite.tree_costs import cheapest_tree, tree_cost

_PLANNERS = {
    "joint": joint, "greedy": greedy, "algorithm-10": algorithm_10, "exhaustive": exhaustive,
}  # fmt: skip
_INTERVALS_AHEAD = 2  # a query that goes by the clock begins when all sites have heard of it


def choose_plan(file: QueryFile) -> AnyPlan:
    """The plan that the file asks for."""
    plan = file.plan.fixed or _chosen(file)
    check_plan(plan, file.ahead, file.plan.replan_every)
    return plan


def _chosen(file: QueryFile) -> AnyPlan:
    part, known, prices = file.plan, statistics(file), prices_of(file.shapes, file.second)
    if part.planner == "tree":
        return cheapest_tree(file.query, known, prices, part.algorithms)
    return _PLANNERS[part.planner](CostModel(file.query, known, prices), part.algorithms)


def deployment(file: QueryFile, plan: AnyPlan, addresses: Mapping[str, str]) -> Deployment:
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


def print_plan(console: Console, file: QueryFile, plan: AnyPlan) -> None:
    """Print a plan, with the bytes it will send if the statistics are right."""
    table = Table(
        "rows of", "at", "are joined with",
        box=box.SIMPLE_HEAD, title=f"Plan of {file.name}", title_justify="left",
    )  # fmt: skip
    for level in levels_of(plan):
        for head, steps in level.plan.sequences.items():
            way = ", then ".join(f"{step.stream} by {step.algorithm}" for step in steps)
            table.add_row(head, level.query.stream(head).site, way)
    console.print(table)
    try:
        cost = _cost(file, plan)
    except JobFileError:
        console.print("Nothing is known of the streams, so neither of what will be sent.")
        return
    sent = format_bytes(round(cost.nbytes * file.second))
    console.print(f"Expected: {sent} and {cost.messages * file.second:.1f} messages a second.")


def _cost(file: QueryFile, plan: AnyPlan) -> Cost:
    known, prices = statistics(file), prices_of(file.shapes, file.second)
    if isinstance(plan, TreePlan):
        return tree_cost(plan, known, prices)
    return CostModel(file.query, known, prices).plan(plan)
