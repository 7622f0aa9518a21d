"""Three routers, one query, and what each plan ships: `python examples/routers.py`.

Starts a site for each router as a process of its own (see sites.toml for the query: packets to the
same destination that pass all three within five seconds), runs the query once with each one-way
algorithm and once with the plan that the planner chooses, and draws the bytes that went over the
links. All runs find the same results. With matplotlib, also as routers.png.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dovetail.cli.site.file import PlanPart, QueryFile, read_query
from dovetail.cli.site.plan import choose_plan, deployment
from dovetail.cli.site.run import Run, watch
from dovetail.cli.views import bar
from dovetail.kernel.memory import format_bytes
from dovetail.multisite.live.local import LocalSites
from dovetail.multisite.plan import PAPER, Plan

INTERVALS = 20
QUERY = Path(__file__).with_name("sites.toml")
PICTURE = Path("routers.png")


def run(console: Console, sites: LocalSites, file: QueryFile, plan: Plan) -> tuple[int, int]:
    """Bytes shipped and results found by a plan."""
    runs = Run(file, deployment(file, plan, sites.addresses()), sites.access)
    runs.start()
    try:
        watch(console, runs, INTERVALS)
        statuses = runs.statuses().values()
        for client in runs.clients.values():
            client.stop(file.name, forget=True)
    finally:
        runs.close()
    shipped = sum(link.nbytes for status in statuses for link in status.links.values())
    return shipped, sum(status.result_rows for status in statuses)


def draw(shipped: dict[str, int]) -> None:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    colours = ["tab:orange", *["tab:blue"] * (len(shipped) - 1)]  # the planner's choice is first
    bars = axes.barh(list(shipped), [nbytes / 1000 for nbytes in shipped.values()], color=colours)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("Three routers: what each plan ships")
    axes.set_xlabel(f"kilobytes between the sites in {INTERVALS} intervals")
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)
    print(f"The picture is in {PICTURE}.")


def main() -> None:
    console = Console(force_terminal=False, width=100)
    file = read_query(QUERY)
    plans = {"planner's choice": choose_plan(file)}
    for algorithm in PAPER:
        part = replace(file, plan=PlanPart(algorithms=(algorithm,)))
        plans[f"all {algorithm}"] = choose_plan(part)
    shipped, found = {}, set()
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        sites = LocalSites(Path(folder), file.hosts, {"durable": False})
        try:
            for host in file.hosts:
                sites.start(host)
            for label, plan in plans.items():
                shipped[label], results = run(console, sites, file, plan)
                found.add(results)
        finally:
            sites.stop()
    assert len(found) == 1, f"plans differ in their results: {found}"
    table = Table("plan", "bytes shipped", "", box=None)
    for label, nbytes in shipped.items():
        table.add_row(label, format_bytes(nbytes), bar(nbytes / max(shipped.values()), 50))
    console.print(table)
    console.print(f"{found.pop():,} results with each of them.")
    draw(shipped)


if __name__ == "__main__":
    main()
