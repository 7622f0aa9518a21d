"""The MINER figures at a tiny size, and the parts they are made of."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from dovetail_bench import registry
from dovetail_bench.diner.streams import TUPLE_BYTES, Rng
from dovetail_bench.miner import figures as miner
from dovetail_bench.miner.bound import share_online
from dovetail_bench.miner.runs import (
    Inputs,
    Setting,
    batches,
    chain,
    even_chain,
    even_star,
    run,
    star,
)
from dovetail_bench.progress import Silent
from dovetail_bench.result import Result
from support.multiway import combinations

NAMES = ("miner-inputs", "miner-buffer", "miner-star", "miner-growth")


def result(name: str, only: str, rows: int) -> Result:
    benchmark = registry.find(name)
    config = benchmark.configure(rows=rows, repetitions=("1",), only=only)
    return registry.run(benchmark, config, Silent())


def test_benchmarks_when_listed_then_are_all_there() -> None:
    assert set(NAMES) <= set(registry.benchmarks())


@pytest.mark.parametrize(("name", "only"), [("miner-inputs", "3 inputs,5%"), ("miner-star", "5%")])
def test_figure_when_tiny_then_has_a_ratio_for_every_rival_and_its_raw_numbers(
    name: str, only: str
) -> None:
    found = result(name, only, 1_500)
    assert found.ok, found.failures
    assert set(found.ratios) == {f"miner-paper/{only}", f"mjoin/{only}"}
    facts = found.facts["points"][only]
    for rival in ("miner-paper", "mjoin"):
        assert facts["flushed_rows"][rival] > 0, "nothing was spilled: the size is too small"
        assert facts["peak_bytes"][rival] <= facts["budget_bytes"]
        online = facts["results_online"]
        ratio = found.ratios[f"{rival}/{only}"].median
        assert ratio == pytest.approx(max(1, online["miner"]) / max(1, online[rival]), rel=1e-3)
    assert 0 < facts["share_online"]["miner"] < 1
    split = facts["share_of_budget"]["miner"]
    assert 0.5 < sum(split.values()) < 1.05
    assert split["beside_rows"] > facts["index_bytes"]["miner"] / facts["budget_bytes"]


def test_star_when_foreign_rows_come_over_the_whole_time_then_has_a_goal_of_its_own() -> None:
    found = result("miner-star", "spread,20%", 1_500)
    assert found.ok, found.failures
    assert list(found.facts["goals"]) == ["60 times MJoin, spread,20%"]
    facts = found.facts["points"]["spread,20%"]
    by_buckets = facts["results_online_of_mjoin_by_buckets"]
    assert list(by_buckets) == ["its own", "16", "64"]
    assert max(by_buckets.values()) == facts["results_online"]["mjoin"]
    drawn = star(np.random.default_rng(1), 1_500, spread=True)
    assert [times[-1] for times in drawn.times] == pytest.approx([drawn.end] * 4)


def test_buffer_when_sources_pause_then_rows_wait_until_the_join_is_called_back() -> None:
    found = result("miner-buffer", "3 inputs,50%", 1_500)
    assert found.ok, found.failures
    facts = found.facts["points"]["3 inputs,50%"]
    limit = found.facts["rows_that_end_the_reactive_phase"]["3 inputs,50%"]
    assert facts["results_in_reactive_phase"]["miner"] > 0
    assert limit < facts["largest_input_buffer"]["miner"] < 2 * limit, "it hands over promptly"


def test_growth_when_there_are_three_inputs_then_the_odometer_of_blocks_reads_more() -> None:
    found = result("miner-growth", "3", 250)
    assert found.ok, found.failures
    ratio = found.ratios["miner-paper/3"].median
    assert ratio is not None
    assert ratio > 2
    assert "miner-paper" not in miner.GROWTH[-1].contenders, "it would not end"


def test_growth_when_memory_is_scarce_then_tells_how_blocks_grow() -> None:
    found = result("miner-growth", "star,5%,4", 120)
    assert found.ok, found.failures
    facts = found.facts["points"]["star,5%,4"]
    assert facts["blocks_read"]["miner"] > 0
    grown = found.facts["blocks_read_over_those_of_the_fewest_inputs"]
    assert grown == {"star,5%": {"4 inputs": 1.0}}


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: chain(rng, 60, 4),
        lambda rng: chain(rng, 60, 3, own_ranks=True),
        lambda rng: star(rng, 40),
        lambda rng: star(rng, 60, own_ranks=True),
        lambda rng: even_chain(rng, 30, 5),
        lambda rng: even_star(rng, 30, 4),
    ],
)
def test_inputs_when_drawn_then_the_number_of_results_is_the_oracle_s(
    draw: Callable[[Rng], Inputs],
) -> None:
    inputs = draw(np.random.default_rng(4))
    assert inputs.whole == combinations(inputs.spec, inputs.relations).total() > 0
    handed = sorted((batch.side, batch.start, batch.stop) for batch in batches(inputs))
    assert sum(stop - start for _, start, stop in handed) == inputs.rows


@pytest.mark.parametrize("algorithm", ["miner", "mjoin"])
def test_run_when_it_goes_on_to_the_end_then_all_results_are_there(algorithm: str) -> None:
    inputs = chain(np.random.default_rng(2), 900, 3)
    found = run(algorithm, inputs, Setting(inputs.budget(0.05), complete=True))
    assert found.flushed_rows > 0
    assert sum(found.by_phase.values()) == inputs.whole
    assert found.results < inputs.whole


def test_run_when_a_join_finds_too_much_then_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = miner.STAR[0].draw
    few = dataclasses.replace(
        miner.STAR[0], draw=lambda rng, rows: dataclasses.replace(draw(rng, rows), whole=3)
    )
    monkeypatch.setattr(miner, "STAR", (few,))
    found = result("miner-star", "5%", 600)
    assert not found.ok
    assert "of 3 results" in found.failures[0].error


def test_figure_when_it_repeats_then_processes_beside_each_other_find_the_same() -> None:
    benchmark = registry.find("miner-star")
    once, twice = (
        registry.run(
            benchmark,
            benchmark.configure(rows=600, repetitions=(repetitions,), only="5%"),
            Silent(),
        )
        for repetitions in ("1", "2")
    )
    assert twice.ok, twice.failures
    ratio, first = twice.ratios["mjoin/5%"], once.ratios["mjoin/5%"]
    assert ratio.n == 2
    assert first.median in (ratio.min, ratio.max)


# -- the bound ------------------------------------------------------------------------------


def test_bound_when_all_rows_fit_then_everything_can_be_found() -> None:
    for inputs in (2, 3, 4):
        drawn = chain(np.random.default_rng(1), 400, inputs)
        assert share_online(drawn, drawn.rows) == pytest.approx(1.0, rel=1e-3)


def test_bound_when_one_value_fills_the_memory_then_is_what_can_be_worked_out() -> None:
    """A share x of each side held: the rows that come find 1 - (1 - x)^2 of all pairs."""
    drawn = star(np.random.default_rng(1), 1_000)
    column = {name: rows.column("a").to_numpy() for name, rows in
              zip(drawn.spec.names, drawn.relations, strict=True)}  # fmt: skip
    two, three = (np.bincount(column[name], minlength=100) for name in ("r2", "r3"))
    rows = int(two[0])  # no room for more than a half of the most frequent value
    found = share_online(drawn, rows)
    of_it = two[0] * three[0] / drawn.whole
    assert of_it * 0.7 < found < of_it


@pytest.mark.parametrize("algorithm", ["miner", "mjoin"])
@pytest.mark.parametrize("inputs", [2, 3, 4])
def test_bound_when_a_join_has_run_then_it_has_found_less(algorithm: str, inputs: int) -> None:
    drawn = chain(np.random.default_rng(inputs), 2_500, inputs)
    found = run(algorithm, drawn, Setting(drawn.budget(0.1)))
    share = found.results / drawn.whole
    assert 0 < share < share_online(drawn, drawn.budget(0.1) // TUPLE_BYTES)
    assert found.rows_in_memory * TUPLE_BYTES < drawn.budget(0.1)


def test_readings_when_frequent_values_differ_then_more_could_be_found_with_little_memory() -> None:
    """A row of a value that is rare on its own side may meet many: few rows make most results."""
    found = result("miner-inputs", "readings", 200)
    assert found.ok, found.failures
    assert not found.ratios, "no join is run"
    readings = found.facts["readings"]
    for inputs in ("2 inputs", "4 inputs", "4 inputs, one value a row"):
        same, own = readings[inputs], readings[f"{inputs}, own frequent values"]
        assert 0 < same["5%"] < own["5%"] < own["20%"] < 1
        assert same["5%"] < same["20%"] < 1
