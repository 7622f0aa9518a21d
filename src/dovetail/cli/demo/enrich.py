"""`dovetail demo enrich`: orders meet their customers, and those of unknown ones are found."""

import time

from dovetail.api import enrich, progress
from dovetail.cli.demo.data import CUSTOMER_KEY, Settings, Shop
from dovetail.cli.demo.scene import Scene
from dovetail.cli.views import enrich_summary
from dovetail.cli.watch import Watched
from dovetail.specs import EnrichHow

#: what is done, and where its results and its state go
_JOBS: dict[EnrichHow, tuple[str, str]] = {
    "left": ("enriched", "state"),
    "anti": ("unknown", "state-unknown"),
}


def run(scene: Scene, shop: Shop, settings: Settings) -> None:
    """Enrich the orders into Parquet files, then find unknown customers, to the end.

    The second query has a state of its own, and so stages the table too, its keys alone.
    """
    for how in _JOBS:
        _one(scene, shop, settings, how)


def _one(scene: Scene, shop: Shop, settings: Settings, how: EnrichHow) -> None:
    out, state_name = _JOBS[how]
    console, state = scene.console, scene.directory / state_name
    orders = scene.open_stream(shop.orders)
    started = time.monotonic()
    what = "customers" if how == "left" else "customers' keys"
    console.print(f"Staging the table of {what} …")
    result = enrich(
        orders,
        shop.table,
        on=CUSTOMER_KEY,
        how=how,
        memory=settings.budget_bytes,
        state=state,
        partitions=settings.partitions,
    )
    staged = time.monotonic()
    query = scene.start(result, f"checkpoint-{out}", out)
    scene.watch(Watched(query, state, (shop.rows, 0)))
    seconds = time.monotonic() - staged
    done = progress(state)
    if how == "left":
        console.print(enrich_summary(done, seconds, staged - started))
    else:
        found = sum(done.rows_out.values())
        console.print(f"An anti join found {found:,} orders of no known customer: {seconds:.1f} s.")


def check(scene: Scene, shop: Shop) -> bool:
    """Whether both results are those of Spark's batch joins of the same files."""
    same = [
        scene.check(shop.orders, shop.table, CUSTOMER_KEY, how, out, f"Spark's batch {how} join")
        for how, (out, _) in _JOBS.items()
    ]
    return all(same)
