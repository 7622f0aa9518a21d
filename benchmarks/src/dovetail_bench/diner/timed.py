"""Figures 7, 8, 16 and 19 and Table 3 of the DINER paper: results over time, and pauses.

Here reading, writing and results take time (`simulate.Costs`). The paper's parameters for the
deferred work, MaxOuterMem = 19 blocks and MaxNewArr = 1,000 rows, are for its 2 MB of memory, and
are scaled with the memory that there is.
"""

from typing import Any

import numpy as np

from dovetail_bench.diner.blocking import curves
from dovetail_bench.diner.figure import (
    OURS,
    Draw,
    Figure,
    Point,
    Repetition,
    advantage,
    benchmark,
    draw,
    measure,
    median_of,
    result_of,
    spread,
)
from dovetail_bench.diner.real import PRICE_ROWS, stock, weather
from dovetail_bench.diner.rivals import HISTORY, OTHER_DINERS, OUTER_BLOCKS, WHOLE_TASKS
from dovetail_bench.diner.simulate import MOST_WAITING, Costs, Curve
from dovetail_bench.diner.streams import MADE_UP, Rng, Streams, with_pauses, zipf
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Config
from dovetail_bench.result import Result, Spread, significant

PARTS = (25, 50, 75, 100)  #: percent of the time until the last row
STEPS = 50  #: points of a curve
HORIZON = 1.1
TITLES = {"weather": "temperatures", "prices": "made-up prices"}  #: of Figs. 8 and 7
OUTER_PAUSE = 0.3  #: in Fig. 19, which has to have a Reactive phase
TABLE_3 = {  #: the paper's largest input buffers, in rows, at its size
    10: {"diner": 1030, "rpj": 40000, "hmj": 1443},
    20: {"diner": 1009, "rpj": 6548, "hmj": 423},
    30: {"diner": 1008, "rpj": 6016, "hmj": 2939},
    40: {"diner": 1008, "rpj": 3422, "hmj": 8269},
    50: {"diner": 1004, "rpj": 2719, "hmj": 7144},
}


RATE_NOTES = {
    "the paper": "DINER's rate is much higher than all others' (Figs. 7, 8); its text has no more "
    "numbers than that",
    "the prices": MADE_UP,
    "joins that wait": "the nested loop, the hash and the sort-merge join (dashed) were not run: "
    "when they would have their results is worked out from the same costs, in their favour",
}
DELAYS_NOTES = {
    "the paper": "up to 1.83 times RPJ's results online, up to 8.65 times HMJ's; RPJ overflows its "
    "input buffer with pauses of 10 %",
    "why RPJ gains in long pauses": "a block that ReactiveNL reads meets MaxOuterMem blocks, a "
    "tenth of the memory, in the order of the flushes; XJoin and RPJ let it meet all rows of its "
    "partition that are in memory, and RPJ reads the one that promises most. And DINER has on disk "
    "the rows that join least, for it finds the others' results while they arrive, where RPJ and "
    "XJoin have flushed productive rows. So a block that is read is worth more to them, see "
    "results_in_reactive_phase and blocks_read",
    "two rules": "every join can be left after any piece of deferred work, and is, as soon as "
    "more than MaxNewArr rows wait. The paper has that rule for DINER only; by its own, RPJ and "
    "HMJ look up after a whole task, and are left if any row waits: these are rpj-paper and "
    "hmj-paper. They may then find more, while more rows wait (see largest_input_buffer, beside "
    "most_rows_to_wait_before_a_join_is_called_back and rows_that_fit). Where more wait than fit "
    "in memory, the paper takes a join to have failed, whatever it found: see "
    "input_buffer_overflows",
}


def _paused(share: float) -> Draw:
    def draw(rng: Rng, rows: int) -> Streams:
        keys = zipf(rng, rows, 1.0), zipf(rng, rows, 1.0)
        return Streams(keys, (with_pauses(rng, rows, share), with_pauses(rng, rows, share)))

    return draw


RATE = Figure(
    "diner-rate",
    "Figs. 7, 8: results over time, on temperatures and made-up prices",
    "time, % of the time of the last row",
    (Point("weather", 0, weather), Point("prices", 1, stock)),
    timed=True,
    with_variants=True,
    horizon=HORIZON,
    notes=RATE_NOTES,
)
DELAYS = Figure(
    "diner-delays",
    "Fig. 16: pauses after every tenth of a relation; Zipfian keys of skew 1",
    "pause, % of the time of a tenth",
    tuple(Point(f"{percent}%", percent, _paused(percent / 100)) for percent in TABLE_3),
    timed=True,
    with_variants=True,
    besides=(HISTORY, *WHOLE_TASKS),
    notes=DELAYS_NOTES,
)
OUTER = Figure(
    "diner-outer",
    "Fig. 19: MaxOuterMem, with pauses of 30 %; Zipfian keys of skew 1",
    "MaxOuterMem in blocks, of 200 that memory holds",
    (Point("pauses", OUTER_PAUSE, _paused(OUTER_PAUSE)),),
    timed=True,
    besides=(HISTORY, *(kind.name for kind in OTHER_DINERS)),
)
FIGURES = (RATE, DELAYS, OUTER)


def run_rate(config: Config, reporter: Reporter) -> Result:
    """Results by quarters of the time, and the curves."""
    measured, failures = measure(RATE, config, reporter)
    result = result_of(RATE, measured, failures, config)
    ratios = {
        f"{rival}/{point.label},{part}%": spread(runs, rival, part / 100)
        for rival in RATE.contenders
        if rival != OURS
        for point, runs in measured.items()
        for part in PARTS
    }
    charts = [_curves_chart(point, runs[0], config) for point, runs in measured.items()]
    first = {p.label: _first_results(p, runs[0], config) for p, runs in measured.items()}
    facts = {**result.facts, "charts": charts, "first_results_ms": first}
    return Result(result.name, ratios, facts, result.failures)


def _all_curves(
    point: Point, one: Repetition, config: Config
) -> tuple[list[str], dict[str, Curve]]:
    """The curves of the first repetition, and which of them are of joins that wait."""
    blocking = curves(draw(point, 1, config), Costs(), one.setting.capacity_rows)
    online = {name: found.curve for name, found in one.found.items()}
    return list(blocking), {**online, **blocking}


def _curves_chart(point: Point, one: Repetition, config: Config) -> dict[str, Any]:
    """Results over time."""
    times = np.linspace(0, HORIZON, STEPS + 1)
    percent = [significant(100 * float(time)) or 0.0 for time in times]
    blocking, every = _all_curves(point, one, config)
    lines = {
        name: [percent, [curve.until(time * one.end) for time in times]]
        for name, curve in every.items()
    }
    return {
        "title": f"Results over time, {TITLES[point.label]}; the inputs end at 100\n"
        "dashed: worked out, not run",
        "x": RATE.axis,
        "y": "results",
        "lines": lines,
        "dashed": blocking,
    }


def _first_results(point: Point, one: Repetition, config: Config) -> dict[str, float | None]:
    """When each join has its first result, and when the last row comes."""
    _, every = _all_curves(point, one, config)
    moments = {name: significant(curve.first) for name, curve in every.items()}
    return {"last_row": significant(one.end), **moments}


def run_delays(config: Config, reporter: Reporter) -> Result:
    """Results online, and how many rows waited at most (Table 3)."""
    measured, failures = measure(DELAYS, config, reporter)
    result = result_of(DELAYS, measured, failures, config)
    rivals = [name for name in DELAYS.contenders if name != OURS]
    buffers = {
        f"{rival}/buffer,{point.label}": _buffers(runs, rival)
        for rival in rivals
        for point, runs in measured.items()
        if any(_reacts(one, rival) for one in runs)
    }
    lines = {
        name: [
            [point.x for point in measured],
            [median_of(runs, name, lambda one: one.largest_buffer) for runs in measured.values()],
        ]
        for name in DELAYS.contenders
    }
    chart = {
        "title": "Table 3: the largest input buffer",
        "x": DELAYS.axis,
        "y": "rows that waited",
        "lines": lines,
    }
    first = next(iter(measured.values()))[0]
    facts = {
        **result.facts,
        "most_rows_to_wait_before_a_join_is_called_back": first.setting.most_waiting,
        "input_buffer_overflows": {
            point.label: _overflows(runs) for point, runs in measured.items()
        },
        "table_3_of_the_paper": {
            "rows_to_wait": MOST_WAITING,
            **{f"{percent}%": row for percent, row in TABLE_3.items()},
        },
        "charts": [*result.facts["charts"], chart],
    }
    return Result(result.name, {**result.ratios, **buffers}, facts, result.failures)


def run_outer(config: Config, reporter: Reporter) -> Result:
    """DINER with every MaxOuterMem against DINER with the paper's, and against the rivals.

    All of them have the same streams, and the rivals have no such parameter.
    """
    measured, failures = measure(OUTER, config, reporter)
    result = result_of(OUTER, measured, failures, config)
    runs = [one for some in measured.values() for one in some]
    usual = f"{OURS}-{OUTER_BLOCKS}"
    names = {usual: OURS} | {kind.name: kind.name for kind in OTHER_DINERS}
    by_blocks = {int(name.rpartition("-")[2]): found for name, found in sorted(names.items())}
    rivals = [name for name in OUTER.contenders if name not in names.values()]
    ratios = {
        f"{rival}/{blocks}": _against(runs, ours, OURS if rival == usual else rival)
        for rival in (usual, *rivals)
        for blocks, ours in sorted(by_blocks.items())
        if rival != usual or blocks != OUTER_BLOCKS
    }
    setting = runs[0].setting
    facts = {
        **result.facts,
        "blocks_at_this_size": {
            blocks: setting.outer_blocks(blocks) for blocks in sorted(by_blocks)
        },
        "charts": [_outer_chart(ratios)],
    }
    return Result(result.name, ratios, facts, result.failures)


def _against(repetitions: list[Repetition], ours: str, theirs: str) -> Spread:
    """The results of one over those of the other."""
    return Spread.of(
        advantage(one.found[ours].results, one.found[theirs].results)
        for one in repetitions
        if ours in one.found and theirs in one.found
    )


def _outer_chart(ratios: dict[str, Spread]) -> dict[str, Any]:
    lines: dict[str, list[list[float]]] = {}
    for label, ratio in ratios.items():
        rival, _, blocks = label.partition("/")
        if ratio.median is not None:
            xs, ys = lines.setdefault(rival, [[], []])
            xs.append(float(blocks))
            ys.append(significant(ratio.median) or 0.0)
    return {
        "title": OUTER.title,
        "x": OUTER.axis,
        "y": "DINER's results online, times",
        "lines": lines,
    }


def _reacts(one: Repetition, name: str) -> bool:
    """Whether a join did anything in the silences; if not, nothing came to wait for it."""
    return name in one.found and one.found[name].by_phase.get("reactive", 0) > 0


def _overflows(repetitions: list[Repetition]) -> list[str]:
    """Who had more rows waiting than fit in memory, at least once."""
    return [
        name
        for name in DELAYS.contenders
        if any(
            one.found[name].largest_buffer > one.setting.capacity_rows
            for one in repetitions
            if name in one.found
        )
    ]


def _buffers(repetitions: list[Repetition], rival: str) -> Spread:
    """The rival's largest input buffer over DINER's; an empty one counts as one row."""
    return Spread.of(
        max(1, one.found[rival].largest_buffer) / max(1, one.found[OURS].largest_buffer)
        for one in repetitions
        if OURS in one.found and _reacts(one, rival)
    )


BENCHMARKS = (
    benchmark(
        RATE,
        PRICE_ROWS,
        "rows a side, at most",
        "DINER, other joins, and those that wait for an input to end (worked out, not run)",
        run_rate,
    ),
    benchmark(DELAYS, compares="results online and the input buffer", function=run_delays),
    benchmark(
        OUTER, compares="DINER against itself with 19 blocks, and other joins", function=run_outer
    ),
)
