"""Group `cleanup` of `spark-diner`: what DINER's Cleanup costs, by itself and without Spark.

1M + 1M rows with uniform keys at 5 % memory, in batches from alternating sides. Timed is what
comes after both inputs have ended. Ours goes by ranges of codes (an external sort-merge) where the
zone maps say that this reads less; the rival is the paper's nested loops with all of the memory,
once with zone maps and once as in the paper: of the two the faster one counts. What zone maps are
worth by themselves is the ratio of these two, `no-zone-maps/cleanup`.
"""

import time

import numpy as np

from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import SIDES, Context, Status
from dovetail.twoway import Diner, PaperDiner, TwoWaySpec
from dovetail.twoway.diner.joins import DinerOptions
from dovetail_bench.data import KEY, Relations, make_relations
from dovetail_bench.measure import Contender, Measured, Runs, expect_rows, interleaved, warm_up
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.scratch import block_store
from dovetail_bench.spark.diner_setup import Part, batch_rows, budget_of

MEMORY_SHARE = 0.05
OURS = "sort-merge"
ZONED, PUBLISHED = "loops", "loops as in the paper"
OPTIONS = {
    OURS: Diner.default_options,
    ZONED: DinerOptions(cleanup="loop"),
    PUBLISHED: PaperDiner.default_options,
}
_FUEL = 1 << 16


def cleanup(config: Config, reporter: Reporter) -> Part:
    rng = np.random.default_rng(config.seed)
    relations = make_relations(config.rows, config.rows, rng)
    few = make_relations(max(1, config.rows // 20), config.rows, rng)
    warming = Runs()
    warm_up([contender(name, few) for name in OPTIONS], warming, reporter)
    contenders = [contender(name, relations) for name in OPTIONS]
    runs = interleaved(contenders, config.repetitions_of("cleanup"), reporter)
    ratios = {
        "loops/cleanup": runs.ratio([ZONED, PUBLISHED], OURS, "cleanup"),
        "no-zone-maps/cleanup": runs.ratio([PUBLISHED], ZONED, "cleanup"),
    }
    facts = {
        "rows": f"{config.rows} + {config.rows}",
        "result_rows": relations.pairs,
        "budget_bytes": _budget(relations),
        "batch_rows": batch_rows(config.rows),
        "of the rival's variants": "the faster one counts, repetition by repetition",
        "contenders": runs.facts(),
    }
    return Part(ratios, facts, (*warming.failures, *runs.failures))


def contender(name: str, relations: Relations) -> Contender:
    """DINER with one kind of Cleanup, in which the time is taken."""
    batches = list(relations.batches(batch_rows(relations.left.num_rows)))

    def run() -> Measured:
        spec = TwoWaySpec(relations.left.schema, relations.right.schema, (KEY,), (KEY,))
        with block_store(spec.schemas) as store:
            context = Context(Budget(_budget(relations)), store)
            operator = Diner(spec, context, options=OPTIONS[name])
            started = time.perf_counter()
            early = sum(
                out.num_rows for side, batch in batches for out in operator.push(side, batch)
            )
            arrived = time.perf_counter()
            read = context.counters.bytes_read
            late, way = _clean_up(operator)
            ended = time.perf_counter()
        expect_rows(early + late, relations.pairs)
        facts = {
            "results_while_arriving": early,
            "results_in_cleanup": late,
            **way,
            "bytes_read_in_cleanup": context.counters.bytes_read - read,
            "spilled_bytes": context.counters.flushed_bytes,
        }
        return Measured({"cleanup": ended - arrived, "whole": ended - started}, facts)

    return Contender(name, run)


def _clean_up(operator: Diner) -> tuple[int, dict[str, int]]:
    """Let a join do all that is left; returns how many results that makes, and how it was done."""
    for side in SIDES:
        operator.finish(side)
    results, way = 0, {"by_ranges_of_codes": 0, "sorted_first": 0}
    while operator.status() is not Status.DONE:
        results += sum(out.num_rows for out in operator.poll(_FUEL))
        sweep = operator.sweeper.state
        if sweep is not None:
            way = {"by_ranges_of_codes": 1, "sorted_first": int(sweep.sorted)}
    return results, way


def _budget(relations: Relations) -> int:
    return budget_of(relations.nbytes, MEMORY_SHARE, partitions=1)
