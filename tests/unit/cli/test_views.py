"""Bars, sparklines and tables of a join's progress."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

import dovetail
from dovetail.cli.views import (
    COMPONENTS,
    Outlook,
    bar,
    costs_line,
    enrich_summary,
    last_records,
    live_line,
    live_view,
    make_console,
    overall_phase,
    phase_of,
    sparkline,
    summary,
)
from dovetail.spark.state.metrics import PartitionProgress, progress
from dovetail.spark.state.totals import Totals

MakeState = Callable[..., Path]


def drawn(renderable: RenderableType) -> list[str]:
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return [" ".join(line.split()) for line in capture.get().splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("share", "shown"), [(0, "░░░░"), (0.5, "██░░"), (1, "████"), (1.7, "████"), (-1, "░░░░")]
)
def test_bar_when_drawn_then_never_leaves_its_width(share: float, shown: str) -> None:
    assert bar(share, 4).plain == shown


def test_sparkline_when_values_vary_then_the_largest_is_full() -> None:
    assert sparkline([0, 5, 10], 40) == "▁▅█"  # rounded up
    assert sparkline([1] * 50, 40) == "█" * 40
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize(
    ("recorded", "pending", "produced", "phase"),
    [
        ("arriving", 7, {"arriving": 5}, "arriving"),
        ("deferred", 7, {"reactive": 5}, "reactive"),
        ("deferred", 7, {"reactive": 5, "cleanup": 1}, "cleanup"),
        ("deferred", 7, {}, "deferred"),
        ("idle", 0, {"cleanup": 5}, "caught up"),
        ("arriving", 0, {"deferred": 5}, "caught up"),
    ],
)
def test_phase_when_work_was_deferred_then_is_told_by_what_it_produced(
    recorded: str, pending: int, produced: dict[str, int], phase: str
) -> None:
    part = PartitionProgress(0, 1, pending, recorded, Totals())
    assert phase_of(part, {"rows_out": produced}) == phase


def test_components_when_memory_is_reserved_for_them_then_have_a_name_in_plain_words() -> None:
    source = Path(dovetail.__file__).parent
    folders = ("kernel", "twoway", "multiway", "semistream", "spark")
    text = "".join(p.read_text() for name in folders for p in (source / name).rglob("*.py"))
    pattern = r'(?:budget, |reserve\(|^COMPONENT = )"([a-z ]+)"'
    found = set(re.findall(pattern, text, re.MULTILINE))
    assert {"rows", "outer", "frequencies", "working"} <= found
    assert found <= set(COMPONENTS), "what a user would not understand"


def test_overall_phase_when_partitions_differ_then_counts_those_that_stepped_last(
    make_state: MakeState,
) -> None:
    make_state("arriving")
    state = make_state("deferred", "reactive")
    seen = progress(state)
    assert overall_phase(seen, last_records(seen)) == "reactive"
    state = make_state("idle")
    seen = progress(state)
    assert overall_phase(seen, last_records(seen)) == "caught up"


def test_live_view_when_rows_arrive_then_shows_them_against_what_is_expected(
    make_state: MakeState,
) -> None:
    lines = drawn(live_view(progress(make_state()), Outlook(12.4, (4000, 4004), 2468)))
    assert lines[0] == "phase arriving batch 0, 12 s"
    assert lines[1].startswith("rows in 2,000 + 2,002 █")
    assert lines[1].endswith("50 %")
    assert lines[3].startswith("memory 800.0 KB ████████████████░░░░ of 1000.0 KB")
    assert lines[-1] == "pending 2,468 rows"


def test_live_view_when_the_inputs_are_silent_then_shows_how_much_is_worked_off(
    make_state: MakeState,
) -> None:
    view = live_view(progress(make_state("deferred", "cleanup")), Outlook(12.4, None, 4936))
    assert drawn(view)[-1].endswith("50 %")


def test_live_view_when_there_is_no_progress_yet_then_says_so() -> None:
    assert drawn(live_view(None, Outlook(3.0))) == ["phase first micro-batch 3 s"]


def test_live_line_when_printed_then_has_it_all(make_state: MakeState) -> None:
    assert live_line(progress(make_state()), 7.25) == (
        "  7.2 s  batch 0, arriving: 2,000 + 2,002 rows in, 2,000 out, 800.0 KB of 1000.0 KB, "
        "150.0 KB spilled, 2,468 pending"
    )


def test_summary_when_the_inputs_have_ended_then_adds_up(make_state: MakeState) -> None:
    lines = drawn(
        summary(progress(make_state("idle")), 30.04, ("orders", "payments"), (3, 0), ended=True)
    )
    assert lines == [
        "rows in, orders 2,003 3 with a null key, which matches nothing",
        "rows in, payments 2,002",
        "rows out 2,000",
        "results before the inputs ended 1,400 70.0 %",
        "results after the inputs ended 600 30.0 %",
        "reactive 400 20.0 %",
        "cleanup 200 10.0 %",
        "memory: rows and their index, at most 400.0 KB 40.0 %",
        "memory: working space, at most 375.0 KB 37.5 %",
        "memory: input batch, at most 40.0 KB 4.0 %",
        "memory: list of blocks on disk, at most 10.0 KB 1.0 %",
        "memory: all together, at most 800.0 KB 80.0 %",
        "budget 1000.0 KB over 2 partitions",
        "spilled to disk 150.0 KB 3,000 rows",
        "time 30.0 s 1 micro-batch",
    ]


def test_summary_when_the_query_was_stopped_then_does_not_claim_an_end(
    make_state: MakeState,
) -> None:
    lines = drawn(summary(progress(make_state(budget=None)), 3, ended=False))
    assert any(line.startswith("results while the inputs were silent") for line in lines)
    assert "budget unbounded over 2 partitions" in lines


def test_summary_when_rows_went_to_several_partitions_then_copies_are_counted_apart(
    make_state: MakeState,
) -> None:
    lines = drawn(summary(progress(make_state(copies=[0, 301])), 3.0, keyless=(7, 0)))
    assert lines[0] == "rows in, left 2,007 7 with a null key, which matches nothing"
    assert lines[1] == "rows in, right 1,400 and 602 copies for more partitions"


def test_summary_when_a_query_went_on_then_has_the_micro_batches_of_this_run(
    make_state: MakeState,
) -> None:
    make_state()
    state = make_state("idle")
    assert (
        drawn(summary(progress(state), 3.0, before=0))[-1] == "time 3.0 s this run, up to batch 1"
    )
    assert drawn(summary(progress(state), 3.0))[-1] == "time 3.0 s 2 micro-batches"


def test_enrich_summary_when_printed_then_tells_staging_apart(make_state: MakeState) -> None:
    lines = drawn(enrich_summary(progress(make_state("idle", job="enrich")), 12.34, 5.6))
    assert lines == [
        "rows in 2,000 how: left",
        "rows out 2,000",
        "rows settled by the cache 800 40.0 % of the rows that came in",
        "results while rows came in 1,500 75.0 %: cached, or to make room",
        "results after that 500 25.0 %",
        "read of the staged table 2.0 MB besides the rows that matched",
        "could take, joining alone 4,000 rows/s predicted: 5,000 rows/s",
        "longest wait of a row 0 s predicted: 0.5 s",
        "read for a row 1.0 KB a row predicted: 800 B a row",
        "memory: cached table rows, at most 360.0 KB 36.0 %",
        "memory: waiting rows, at most 400.0 KB 40.0 %",
        "memory: working space, at most 250.0 KB 25.0 %",
        "memory: input batch, at most 40.0 KB 4.0 %",
        "memory: all together, at most 800.0 KB 80.0 %",
        "budget 1000.0 KB over 2 partitions",
        "time to stage the table 5.6 s once",
        "time 12.3 s 1 micro-batch",
    ]


def test_live_views_when_a_stream_is_enriched_then_have_one_input_and_no_spilling(
    make_state: MakeState,
) -> None:
    seen = progress(make_state(job="enrich"))
    assert live_line(seen, 7.25) == (
        "  7.2 s  batch 0, arriving: 2,000 rows in, 2,000 out, 800.0 KB of 1000.0 KB, 2,468 pending"
    )
    lines = drawn(live_view(seen, Outlook(12.4, (4000, 0), 2468)))
    assert lines[1].startswith("rows in 2,000 █")
    assert lines[1].endswith("50 %")
    assert lines[2] == "rows out 2,000 75.0 % as rows came in, 25.0 % after that"
    assert not any(line.startswith("spilled") for line in lines)
    assert "2,000 rows in" in str(seen)


def test_make_console_when_there_is_no_terminal_then_is_wide_and_plain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    console = make_console()
    console.print("[bold]x[/bold]" + "y" * 90)
    assert capsys.readouterr().out == "x" + "y" * 90 + "\n"


def test_costs_line_when_a_stream_is_enriched_then_has_measured_beside_predicted(
    make_state: MakeState,
) -> None:
    assert costs_line(progress(make_state(job="enrich"))).plain == (
        "measured 4,000 rows/s, 0 s, 1.0 KB a row  ·  predicted 5,000 rows/s, 0.5 s, 800 B a row"
    )


def test_costs_line_when_two_streams_are_joined_then_is_empty(make_state: MakeState) -> None:
    assert costs_line(progress(make_state())).plain == ""
