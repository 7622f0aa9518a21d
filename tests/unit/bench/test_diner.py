"""The DINER figures at a tiny size, and the parts they are made of."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError
from dovetail.kernel.matching import Emitter
from dovetail.kernel.protocol import Status
from dovetail.twoway import ALGORITHMS, Diner, XJoin
from dovetail_bench import registry, runner
from dovetail_bench.diner import bounds, figure, real, rivals, simulate, streams, synthetic, timed
from dovetail_bench.diner.blocking import curves
from dovetail_bench.diner.figure import Figure, Point
from dovetail_bench.diner.simulate import (
    Costs,
    Setting,
    Work,
    budget,
    contenders,
    run_online,
    variants,
)
from dovetail_bench.diner.streams import Streams, batches, in_order, steady, zipf
from dovetail_bench.progress import Silent
from dovetail_bench.report import write_report
from dovetail_bench.result import Result

ROWS = 900
NAMES = (
    "diner-zipf", "diner-mean", "diner-variance", "diner-sorted", "diner-drift", "diner-sizes",
    "diner-weather", "diner-band", "diner-rate", "diner-delays", "diner-outer", "diner-bound",
)  # fmt: skip


def run(name: str, only: str | None = None, rows: int = ROWS, repetitions: int = 1) -> Result:
    benchmark = registry.find(name)
    config = benchmark.configure(rows=rows, repetitions=(str(repetitions),), only=only)
    return registry.run(benchmark, config, Silent())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some contenders without variants, for tests that are about something else."""
    monkeypatch.setattr(Figure, "contenders", ("diner", "rpj", "pmj"))
    monkeypatch.setattr(figure, "variants", lambda _: (None,))


def two_sided(text: str) -> Streams:
    """`"L1 R1"`: a left row with key 1 at 1 ms, a right row with key 1 at 2 ms."""
    rows = text.split()
    keys = [np.array([int(row[1:]) for row in rows if row[0] == side]) for side in "LR"]
    times = [
        np.array([float(at) for at, row in enumerate(rows, start=1) if row[0] == side])
        for side in "LR"
    ]
    return Streams((keys[0], keys[1]), (times[0], times[1]))


def paused(rows: int, share: float) -> Streams:
    rng = np.random.default_rng(5)
    keys = zipf(rng, rows, 1.0), zipf(rng, rows, 1.0)
    times = [streams.with_pauses(rng, rows, share) for _ in range(2)]
    return Streams(keys, (times[0], times[1]))


# -- the benchmarks -------------------------------------------------------------------------


def test_benchmarks_when_listed_then_are_all_there() -> None:
    assert set(NAMES) <= set(registry.benchmarks())


@pytest.mark.parametrize(
    ("name", "only", "labels"),
    [
        ("diner-zipf", "1", {"rpj/1", "rpj-history/1", "hmj/1", "xjoin/1", "pmj/1"}),
        ("diner-band", "weather", {"pmj/weather"}),
    ],
)
def test_figure_when_tiny_then_has_a_ratio_for_every_rival_and_its_raw_numbers(
    name: str, only: str, labels: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "variants", lambda contender: variants(contender)[:2])
    result = run(name, only)
    assert result.ok, result.failures
    assert labels <= set(result.ratios)
    for label, ratio in result.ratios.items():
        assert ratio.n == 1, label
        assert ratio.median is not None, label
        assert ratio.median > 0, label
    besides = result.facts["contenders_besides"]
    assert set(besides) == (set() if name == "diner-band" else {"rpj-history"})
    assert all(besides.values()), "it is not said what they are"
    facts = result.facts["points"][only]
    online = facts["results_online"]
    for label, ratio in result.ratios.items():
        rival = label.partition("/")[0]
        assert ratio.median == pytest.approx(online["diner"] / max(1, online[rival]), rel=1e-3)
        assert facts["peak_bytes"][rival] <= facts["budget_bytes"]
        assert facts["flushed_rows"][rival] > 0, "nothing was spilled: the size is too small"
        assert 0 < facts["share_of_bound"][rival] <= 1
    assert online["diner"] <= facts["bound"] <= facts["whole_join"]


@pytest.mark.usefixtures("few")
def test_weather_when_run_then_compares_with_the_paper_s_table() -> None:
    result = run("diner-weather", "10%")
    assert result.ok, result.failures
    assert set(result.ratios) == {"rpj/10%", "pmj/10%"}
    table = result.facts["table_4"]["10%"]
    assert 0.01 < table["here"] < 1
    assert table["in the paper"] == 0.17


@pytest.mark.usefixtures("few")
def test_weather_when_in_another_order_then_has_the_same_readings_and_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(real, "WEATHER", dataclasses.replace(real.WEATHER, points=()))
    orders = run("diner-weather", rows=400).facts["the_same_readings_in_other_orders"]
    assert len(orders) == 4
    for found in orders.values():
        assert 0 < found["share_online"] <= 1
        assert set(found) == {"share_online", "over_rpj", "over_pmj"}
    usual = real.weather(np.random.default_rng(1), 400)
    for point in real.ORDERS.points:
        drawn = point.draw(np.random.default_rng(1), 400)
        assert drawn.whole == usual.whole, point.label
        assert not np.array_equal(drawn.keys[1], usual.keys[1]), point.label


@pytest.mark.usefixtures("few")
def test_rate_when_run_then_joins_that_wait_show_nothing_before_an_input_has_ended(
    tmp_path: Path,
) -> None:
    result = run("diner-rate", "prices")
    assert result.ok, result.failures
    assert {"rpj/prices,25%", "pmj/prices,50%"} <= set(result.ratios)
    [chart] = result.facts["charts"]
    first = result.facts["first_results_ms"]["prices"]
    assert set(chart["dashed"]) == {"nested-loop", "hash", "sort-merge"}
    for name, (percent, counts) in chart["lines"].items():
        assert counts == sorted(counts)
        early = [count for at, count in zip(percent, counts, strict=True) if at <= 80]
        assert any(early) != (name in chart["dashed"]), name
        assert first[name] is not None
    assert first["diner"] < 0.1 * first["last_row"] < first["hash"]
    assert first["sort-merge"] > first["last_row"]
    written = write_report([Result.from_json(result.to_json(), "here")], tmp_path)
    assert all(path.stat().st_size for path in written)


@pytest.mark.usefixtures("few")
def test_delays_when_sources_pause_then_deferred_work_finds_results_and_rows_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Figure, "contenders", ("diner", "rpj", "pmj", "rpj-paper"))
    result = run("diner-delays", "50%", rows=1_500)
    assert result.ok, result.failures
    facts = result.facts["points"]["50%"]
    limit = result.facts["most_rows_to_wait_before_a_join_is_called_back"]
    assert facts["results_in_reactive_phase"]["diner"] > 0
    assert facts["results_in_reactive_phase"]["rpj"] > 0
    assert facts["largest_input_buffer"]["diner"] >= limit
    assert {"rpj/50%", "rpj/buffer,50%"} <= set(result.ratios)
    assert "pmj/buffer,50%" not in result.ratios, "it does nothing while the sources pause"
    assert len(result.facts["charts"]) == 2
    assert facts["largest_input_buffer"]["diner"] < 1.5 * limit
    assert facts["largest_input_buffer"]["rpj"] < 1.5 * limit
    assert facts["largest_input_buffer"]["rpj-paper"] > facts["rows_that_fit"]
    assert result.facts["input_buffer_overflows"] == {"50%": ["rpj-paper"]}


def test_outer_when_run_then_compares_diner_with_itself_on_the_same_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("diner", "rpj", "diner-9", "diner-59")
    others = [kind for kind in rivals.OTHER_DINERS if kind.name in names]
    monkeypatch.setattr(Figure, "contenders", names)
    monkeypatch.setattr(timed, "OTHER_DINERS", tuple(others))
    monkeypatch.setattr(figure, "variants", lambda _: (None,))
    result = run("diner-outer")
    assert result.ok, result.failures
    assert set(result.ratios) == {
        "diner-19/9", "diner-19/59", "rpj/9", "rpj/19", "rpj/59",
    }  # fmt: skip
    online = result.facts["points"]["pauses"]["results_online"]
    assert result.ratios["diner-19/9"].median == online["diner-9"] / online["diner"]
    assert result.ratios["rpj/59"].median == online["diner-59"] / online["rpj"]
    assert result.facts["blocks_at_this_size"] == {9: 1, 19: 1, 59: 2}
    assert online["diner-9"] == online["diner"], "they are the same at this size"


def test_drift_when_run_then_its_notes_are_worked_out_from_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Figure, "contenders", ("diner", "rpj", "rpj-history"))
    monkeypatch.setattr(figure, "variants", lambda name: (None, 8)[: 1 + (name != "diner")])
    result = run("diner-drift", "16")
    assert result.ok, result.failures
    facts, point = result.facts, result.facts["points"]["16"]
    ours, theirs = point["results_online"]["diner"], point["results_by_partitions"]["rpj-history"]
    ahead = facts["diner_over_rpj_history_by_partitions"]
    assert set(ahead) == {"own", "8"}
    assert ahead["8"]["16"] == pytest.approx(ours / theirs["8"], rel=1e-3)
    share = point["share_of_bound"]["rpj"]
    assert facts["shares_of_bound"]["rpj"] == [share, share]
    assert facts["most_times_ahead"]["rpj"] == pytest.approx(1 / share, rel=1e-3)
    assert set(facts["shares_of_bound"]) == {"diner", "rpj"}


def test_repetitions_when_a_rival_found_more_then_are_counted() -> None:
    point = synthetic.DRIFT.points[0]

    def one(ours: int, theirs: int) -> figure.Repetition:
        found = {
            name: simulate.Online(count, times=[1.0], counts=[count])
            for name, count in (("diner", ours), ("rpj", theirs))
        }
        return figure.Repetition(0, 0, Setting(1), 1.0, found)

    behind = figure.repetitions_behind({point: [one(9, 10), one(20, 10), one(5, 10)]}, ["rpj"])
    assert behind == {"rpj/1": "2 of 3, worst 0.5"}
    assert figure.repetitions_behind({point: [one(10, 10)]}, ["rpj"]) == {}


@pytest.mark.parametrize("one", bounds.FIGURES, ids=lambda one: one.name)
def test_notes_when_written_then_have_no_numbers_of_ours(one: Figure) -> None:
    """Only what the paper has may be told in numbers: ours are other ones with every run."""
    ours = {name: text for name, text in one.notes.items() if name != "the paper"}
    assert not [text for text in ours.values() if re.search(r"\d\.\d|\d \%", text)]


@pytest.mark.usefixtures("few")
def test_partitions_when_several_are_tried_then_all_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figure, "variants", lambda name: (None, 8) if name == "rpj" else (None,))
    facts = run("diner-mean", "0").facts["points"]["0"]
    tried = facts["results_by_partitions"]["rpj"]
    assert set(tried) == {"own", "8"}
    assert facts["results_online"]["rpj"] == max(tried.values())
    assert facts["partitions"]["rpj"] == [max(tried, key=tried.__getitem__)]


def test_repetitions_when_shared_out_then_are_the_same_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = run("diner-band", "prices", rows=350, repetitions=2)
    monkeypatch.setattr(figure, "_LEAST_ROWS_TO_SHARE", 0)
    monkeypatch.setattr(runner, "available_cores", lambda: 2)
    monkeypatch.setattr(figure, "_repetition", None)  # not in this process
    shared = run("diner-band", "prices", rows=350, repetitions=2)
    assert alone.ok, alone.failures
    assert shared.ratios == alone.ratios
    assert shared.facts["points"] == alone.facts["points"]
    assert shared.ratios["pmj/prices"].min != shared.ratios["pmj/prices"].max, "two drawings"


def test_bound_when_a_figure_is_run_then_no_share_is_above_one() -> None:
    result = run("diner-bound", "band", rows=350, repetitions=2)
    assert result.ok, result.failures
    assert set(result.ratios) == {"bound/band,weather", "bound/band,prices"}
    for label, ratio in result.ratios.items():
        assert ratio.n == 2
        assert ratio.max is not None
        assert 0.05 < ratio.max <= 1, label
    assert set(result.facts["mean_shares"]) == {"diner", "pmj"}
    assert result.facts["points_in_mean"] == {"diner": 2, "pmj": 2}


def test_bound_when_listed_then_has_all_figures() -> None:
    figures = {f"diner-{group}" for group in registry.find("diner-bound").groups}
    assert figures == set(NAMES) - {"diner-bound"}


@pytest.mark.usefixtures("few")
def test_run_when_a_join_finds_more_than_can_be_then_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure, "most_online_results", lambda *_, **__: 3)
    result = run("diner-mean", "0")
    assert not result.ok
    assert "no policy can find more than 3" in result.failures[0].error


@pytest.mark.usefixtures("few")
def test_run_when_a_contender_fails_then_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(name: str, *rest: object) -> simulate.Online:
        if name == "rpj":
            raise OSError("no disk")
        return run_online(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(figure, "run_online", failing)
    result = run("diner-mean", "0")
    assert [failure.contender for failure in result.failures] == ["rpj/0"]
    assert result.ratios["rpj/0"].n == 0
    assert result.ratios["pmj/0"].n == 1


def test_every_point_when_drawn_then_is_what_its_figure_says() -> None:
    rng = np.random.default_rng(1)
    for one in bounds.FIGURES:
        assert len({point.label for point in one.points}) == len(one.points)
        for point in one.points:
            drawn = point.draw(rng, 400)
            assert (drawn.within is not None) == one.band, point
            assert drawn.whole > 0, point
    shares = [len(point.draw(rng, 400).keys[1]) / 400 for point in synthetic.SIZES.points]
    assert shares == [point.x / 100 for point in synthetic.SIZES.points]
    assert [point.share for point in real.WEATHER.points] == [0.05, 0.1, 0.15, 0.2]


# -- the joins under a virtual clock --------------------------------------------------------


def test_contenders_when_asked_for_then_follow_the_registry() -> None:
    assert contenders()[0] == "diner"
    assert set(contenders()) == set(ALGORITHMS) - {"shj", "diner-paper"}
    assert set(contenders(variants=True)) == set(ALGORITHMS) - {"shj"}
    assert all(ALGORITHMS[name].joins_bands for name in contenders(band=True))


@pytest.mark.parametrize(
    "name", [*contenders(variants=True), rivals.HISTORY, *rivals.WHOLE_TASKS, "diner-9"]
)
def test_join_when_it_goes_on_to_its_end_then_finds_the_whole_join(name: str) -> None:
    drawn = paused(500, 3.0)
    setting = Setting(budget(drawn, 0.3), Costs(), horizon=1e9)
    found = run_online(name, drawn, setting)
    assert sum(found.by_phase.values()) == drawn.whole
    assert 0 < found.results < drawn.whole
    assert found.flushed_rows > 0
    assert found.times == sorted(found.times)


@pytest.mark.parametrize(
    ("name", "within"), [("diner", None), ("rpj", None), ("pmj", None), ("diner", 3), ("pmj", 3)]
)
def test_results_when_counted_then_are_as_many_as_when_made(
    monkeypatch: pytest.MonkeyPatch, name: str, within: int | None
) -> None:
    drawn = dataclasses.replace(paused(400, 0.5), within=within)
    setting = Setting(budget(drawn, 0.3), horizon=2.0)
    counted = run_online(name, drawn, setting)
    monkeypatch.setattr(simulate, "CountingEmitter", Emitter)
    made = run_online(name, drawn, setting)
    assert counted.by_phase == made.by_phase
    assert counted.by_phase["arriving"] > 0
    assert (counted.flushed_rows, counted.blocks_read) == (made.flushed_rows, made.blocks_read)


def test_join_when_work_costs_more_then_less_is_found_in_time() -> None:
    drawn = paused(700, 3.0)
    cheap = run_online("xjoin", drawn, Setting(budget(drawn, 0.3), Costs()))
    dear = run_online("xjoin", drawn, Setting(budget(drawn, 0.3), Costs(transfer=200.0)))
    assert dear.results < cheap.results
    assert cheap.by_phase["reactive"] > 0
    assert cheap.largest_buffer > 0
    assert "reactive" not in dear.by_phase, "it is never idle, so there is no time for that"


def test_variants_when_a_join_hashes_then_are_its_own_choice_and_more() -> None:
    assert variants("rpj") == variants("rpj-history") == (None, 8, 16, 32, 64)
    assert variants("hmj") == (None, 16)
    assert variants("diner") == variants("pmj") == (None,)


@pytest.mark.parametrize(("name", "usual"), [("rpj-paper", "rpj"), ("hmj-paper", "hmj")])
def test_join_when_it_looks_up_after_whole_tasks_then_more_rows_wait_for_it(
    name: str, usual: str
) -> None:
    drawn = paused(1_500, 1.0)
    setting = Setting(budget(drawn, 0.3), Costs(transfer=3.0))
    whole, pieces = (run_online(one, drawn, setting) for one in (name, usual))
    assert pieces.by_phase["reactive"] > 0
    assert pieces.largest_buffer < 1.5 * setting.most_waiting
    assert whole.largest_buffer > 2.5 * setting.most_waiting


@pytest.mark.parametrize("name", ["diner", "diner-paper"])
def test_diner_when_rows_come_meanwhile_then_leaves_its_work_by_its_own_rule(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = paused(1_500, 1.0)
    setting = Setting(budget(drawn, 0.3), Costs(transfer=3.0))
    left = []
    poll = Diner.poll

    def noting(operator: Diner, fuel: int) -> Iterator[pa.RecordBatch]:
        yield from poll(operator, fuel)
        left.append((operator.waiting() > operator.options.max_new_arrivals, operator.status()))

    monkeypatch.setattr(Diner, "poll", noting)
    found = run_online(name, drawn, setting)
    silences = batches(drawn, simulate.BATCH_ROWS, simulate.SILENCE_MS)[-1].burst
    assert 0 < len(left) <= silences, "called once, it works until it has seen enough rows come"
    assert (True, Status.MORE) in left
    assert all(enough == (status is Status.MORE) for enough, status in left)
    assert setting.most_waiting < found.largest_buffer < 1.5 * setting.most_waiting


@pytest.mark.parametrize(("name", "blocks"), [("diner", 19), ("diner-9", 9), ("diner-59", 59)])
def test_outer_when_memory_is_the_paper_s_then_is_as_the_name_says(name: str, blocks: int) -> None:
    setting = Setting(simulate.PAPER_BUDGET_BYTES)
    noted = []

    def noting(operator: Diner, *_: object) -> object:
        noted.append(operator.options.max_outer_blocks)
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(simulate, "_Drive", noting)
        with pytest.raises(InterruptedError):
            run_online(name, two_sided("L1 R1"), setting)
    assert noted == [blocks]


def test_history_when_keys_change_then_counts_the_old_ones_as_before() -> None:
    rng = np.random.default_rng(9)
    keys = np.concatenate([np.full(600, 1), np.full(600, 2)])
    drawn = Streams((keys, keys), (steady(rng, 1_200), steady(rng, 1_200)))
    made = {}
    drive = simulate._Drive

    def noting(operator: XJoin, *rest: object) -> object:
        made[operator.name] = operator
        return drive(operator, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(simulate, "_Drive", noting)
        for name in ("rpj", "rpj-history"):
            assert run_online(name, drawn, Setting(1 << 16)).flushed_rows > 0
    highest = {name: made[name].arrivals.max() for name in made}
    assert highest["rpj"] > 0.45, "all rows of late are of one cell, half of them of either side"
    assert highest["rpj-history"] == pytest.approx(0.25, abs=0.05)


def test_join_when_partitions_are_given_then_has_as_many_and_only_that_once() -> None:
    drawn = two_sided("L1 R1 L2 R2")
    counted = []
    drive = simulate._Drive

    def counting(operator: XJoin, *rest: object) -> object:
        counted.append(len(operator.cells))
        return drive(operator, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(simulate, "_Drive", counting)
        for partitions in (16, None):
            assert run_online("rpj", drawn, Setting(1 << 18), partitions).results == 2
    assert counted == [16, 4]
    assert ALGORITHMS["rpj"].partition_count is None, "of that one join only"


def test_work_when_blocks_are_larger_than_a_page_then_counts_pages() -> None:
    costs = Costs(transfer=2.0, result=0.5)
    before = Work(10, 100_000, 7)
    small = Work(14, 100_500, 9)
    large = Work(11, 100_000 + 3 * simulate.PAGE_BYTES, 7)
    assert small.cost_since(before, costs) == 4 * 2.0 + 2 * 0.5
    assert large.cost_since(before, costs) == 3 * 2.0
    assert before.cost_since(before, costs) == 0


def test_setting_when_memory_is_the_paper_s_then_so_are_the_parameters() -> None:
    setting = Setting(simulate.PAPER_BUDGET_BYTES)
    assert setting.budget_bytes == 2_000_000
    assert setting.scale == 1
    assert setting.most_waiting == 1_000
    assert dataclasses.replace(setting, budget_bytes=400_000).most_waiting == 200


# -- streams --------------------------------------------------------------------------------


def test_batches_when_sources_fall_silent_then_none_goes_across_a_silence() -> None:
    drawn = paused(1_000, 3.0)
    found = batches(drawn, 25, 25.0)
    assert sum(one.stop - one.start for one in found) == 2_000
    every = np.sort(np.concatenate(drawn.times))
    silences = int((np.diff(every) > 25.0).sum())
    assert silences >= 5
    assert found[-1].burst == silences
    for one in found:
        assert one.stop - one.start <= 25
        times = drawn.times[one.side][one.start : one.stop]
        assert times[-1] == one.time
        within = every[(every >= times[0]) & (every <= times[-1])]
        assert (np.diff(within) <= 25.0).all()


def test_in_order_when_batches_are_single_rows_then_is_the_order_of_arrival() -> None:
    drawn = two_sided("L1 R2 R3 L4 R5")
    arrivals = in_order(drawn, batches(drawn, 1, 25.0))
    assert arrivals.keys.tolist() == [1, 2, 3, 4, 5]
    assert arrivals.sides.tolist() == [0, 1, 1, 0, 1]


def test_rows_when_made_then_take_the_bytes_of_the_paper_s_tuples() -> None:
    drawn = two_sided("L1 L2 L3 R1")
    assert [relation.nbytes for relation in drawn.relations] == [600, 200]


def test_whole_when_counted_then_is_the_number_of_pairs() -> None:
    drawn = two_sided("L1 R2 L2 L9 R2 R4")
    assert drawn.whole == 2
    assert dataclasses.replace(drawn, within=2).whole == 5


def test_pauses_when_asked_for_then_take_that_share_of_the_time() -> None:
    rng = np.random.default_rng(6)
    plain, longer = steady(rng, 20_000)[-1], streams.with_pauses(rng, 20_000, 0.5)
    assert longer[-1] / plain == pytest.approx(1.45, rel=0.05)  # nine pauses
    assert (np.diff(longer) > 500).sum() == 9


def test_keys_when_drawn_then_follow_their_laws() -> None:
    rng = np.random.default_rng(7)
    skewed = zipf(rng, 20_000, 1.0)
    assert skewed.min() == 1
    assert skewed.max() <= 999
    assert np.mean(skewed == 1) == pytest.approx(2 * np.mean(skewed == 2), rel=0.1)
    cut = streams.partly_sorted(rng, skewed, 10)
    assert np.array_equal(np.sort(cut), np.sort(skewed))
    assert 1 <= (np.diff(cut) < 0).sum() <= 9
    moving = streams.drifting(rng, 10_000, 8)
    assert moving[:1_000].mean() == pytest.approx(83, abs=1)
    assert moving[-1_000:].mean() == pytest.approx(155, abs=1)
    assert moving[:1_000].var() == pytest.approx(15, rel=0.2)


def test_weather_when_read_then_has_two_stations_of_plausible_temperatures() -> None:
    for keys in streams.weather_temperatures():
        assert 8_000 < len(keys) <= real.WEATHER_ROWS
        assert 1_000 <= keys.min() < 2_000  # a cold day, in hundredths of a degree Fahrenheit
        assert 9_000 < keys.max() <= 11_000


def test_weather_when_the_package_is_missing_then_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ArgumentError, match="pip install"):
        streams.weather_temperatures.__wrapped__()  # not what an earlier call has read


# -- joins that wait ------------------------------------------------------------------------


def test_blocking_joins_when_followed_to_the_end_then_find_the_whole_join() -> None:
    drawn = paused(500, 0.2)
    for within in (None, 3):
        wide = dataclasses.replace(drawn, within=within)
        for name, curve in curves(wide, Costs(), 40).items():
            assert curve.counts[-1] == wide.whole, name
            assert (np.diff(curve.times) >= 0).all(), name


def test_blocking_joins_when_work_is_free_then_begin_when_an_input_has_ended() -> None:
    drawn = two_sided("R1 L1 R1 L1 L1")
    free = Costs(0.0, 0.0)
    found = curves(drawn, free, 2)
    # the right side ends at 3: one row is waiting for it, and two are to come
    assert found["hash"].times.tolist() == [3, 4, 5]
    assert found["hash"].counts.tolist() == [2, 4, 6]
    assert found["nested-loop"].times.tolist() == [4, 5]
    assert found["nested-loop"].counts.tolist() == [4, 6]
    assert found["sort-merge"].first == 5


def test_point_when_the_budget_is_of_the_full_input_then_does_not_shrink_with_it() -> None:
    rng = np.random.default_rng(8)
    shapes = Figure("made-up", "", "", synthetic.SIZES.points)
    budgets = {
        point.setting(point.draw(rng, 20_000), 20_000, shapes).budget_bytes
        for point in shapes.points
    }
    assert budgets == {400_000}
    plain = Point("all", 0, synthetic.SIZES.points[0].draw)
    assert plain.setting(plain.draw(rng, 20_000), 20_000, shapes).budget_bytes == 220_000
