"""A stream that outruns a join: what is kept is joined, what is left out is there for later.

The rates are given, so that what is left out does not depend on how fast the machine is.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import dovetail
from dovetail.errors import ArgumentError
from dovetail.semistream.overload import Rates, Shedding

pytestmark = pytest.mark.spark

SEED = 4_711
TINY = "700KB"
TWICE = Rates(arrival=2.0, service=1.0)
CASES = [("keep", "seek"), ("sample", "meshjoin"), ("topw", "seek"), ("cluster", "ssbj")]


@pytest.fixture
def inputs(bench: Any) -> Any:
    """Keys with none, one and many matches; the stream comes in four files."""
    rng = np.random.default_rng(SEED)
    keys = rng.integers(0, 1500, 1000)
    bench.keyed("stream", pa.array(keys, mask=rng.random(1000) < 0.03), files=4)
    table = np.concatenate([np.arange(1000), np.repeat(np.arange(0, 1000, 10), 6)])
    bench.keyed("table", table, text=120)
    return bench


def left_out(bench: Any, folder: Path) -> Any:
    return bench.spark.read.parquet(str(folder))


def check(bench: Any, same_rows: Any, folder: Path, about: str) -> None:
    """Every row is in one of two places, and the results are those of the rows that were kept."""
    stream, table, gone = (pq.read_table(path) for path in (
        bench.root / "stream", bench.root / "table", folder
    ))  # fmt: skip
    stream = stream.filter(pc.is_valid(stream["k"]))  # the others match nothing
    progress = bench.progress()
    counts = (progress.rows_in[0] + progress.rows_shed, progress.rows_shed, progress.pending_rows)
    assert counts == (len(stream), len(gone), 0), f"{about}: {progress}"
    assert abs(2 * len(gone) - len(stream)) <= 4, f"{about}: {len(gone)} left out"
    of_stream = stream.filter(pc.is_in(stream["stream_id"], gone["stream_id"].combine_chunks()))
    same_rows(gone, of_stream, f"{about}, what was left out")
    kept = stream.filter(
        pc.invert(pc.is_in(stream["stream_id"], gone["stream_id"].combine_chunks()))
    )
    joined = kept.join(table, "k", join_type="inner")
    same_rows(bench.results(), joined.select(bench.results().columns), about)


@pytest.mark.parametrize(("strategy", "algorithm"), CASES)
def test_enrich_when_the_stream_outruns_it_then_every_row_is_joined_or_left_out(
    inputs: Any, same_rows: Any, strategy: str, algorithm: str
) -> None:
    folder = inputs.root / "left-out"
    shed = Shedding(strategy, rates=TWICE)
    inputs.run(inputs.enrich(shed=shed, shed_to=folder, memory=TINY, algorithm=algorithm))
    about = f"{strategy}, {algorithm}, seed {SEED}"
    check(inputs, same_rows, folder, about)
    progress = inputs.progress()
    assert progress.memory["total"] <= progress.budget_bytes, about
    assert ("frequencies" in progress.memory) == (strategy in ("topw", "cluster")), about
    assert "left out" in str(progress)
    found = sum(progress.rows_out.values())
    stream, table = (pq.read_table(inputs.root / name) for name in ("stream", "table"))
    every = len(stream.join(table, "k", join_type="inner"))
    if strategy in ("topw", "cluster"):
        assert found > 0.7 * every, f"{about}: {found} of {every} results, as by chance"
    else:
        assert 0.35 * every < found < 0.65 * every, f"{about}: {found} of {every} results"


def test_enrich_when_restarted_and_what_was_left_out_is_joined_later_then_the_result_is_whole(
    inputs: Any, same_rows: Any
) -> None:
    folder = inputs.root / "left-out"
    options = {"how": "left", "memory": TINY, "shed_to": folder}
    shed = Shedding("topw", rates=TWICE)
    inputs.run(inputs.enrich(shed=shed, **options))
    before = inputs.progress().rows_shed
    inputs.keyed("stream", np.arange(300, 600), files=2, seed=2)
    # the strategy may change from one run to the next
    inputs.run(inputs.enrich(shed=Shedding("sample", rates=TWICE), **options))
    assert inputs.progress().rows_shed > before > 0
    assert left_out(inputs, folder).count() == inputs.progress().rows_shed
    later = dovetail.enrich(
        left_out(inputs, folder), inputs.batch("table"), on="k", how="left", memory=TINY
    )
    both = inputs.results().unionByName(later)
    same_rows(both, inputs.enriched("left"), f"live and later, seed {SEED}")
    assert {path.suffix for path in folder.iterdir()} == {".parquet"}, "nothing else lies there"


def test_rows_when_they_have_columns_of_many_types_then_are_the_same_after_they_were_left_out(
    bench: Any, same_rows: Any
) -> None:
    bench.write("stream", bench.nested_rows("stream", SEED), files=2)
    bench.keyed("table", np.arange(100))
    folder = bench.root / "left-out"
    bench.run(bench.enrich(shed=Shedding("keep", rates=TWICE), shed_to=folder, how="semi"))
    gone = left_out(bench, folder)
    assert gone.schema == bench.stream("stream").schema
    later = dovetail.enrich(gone, bench.batch("table"), on="k", how="semi")
    same_rows(bench.results().unionByName(later), bench.enriched("semi"), f"seed {SEED}")


@pytest.mark.parametrize("algorithm", ["meshjoin", "seek"])
def test_enrich_when_rates_and_waits_are_measured_and_it_keeps_up_then_nothing_is_left_out(
    inputs: Any, same_rows: Any, algorithm: str
) -> None:
    """A source that limits what a micro-batch takes does not outrun anything."""
    options = {"latency": "1 hour", "shed": "keep", "shed_to": inputs.root / "left-out"}
    inputs.run(inputs.enrich(memory=TINY, algorithm=algorithm, **options))
    same_rows(inputs.results(), inputs.enriched(), f"{algorithm}, seed {SEED}")
    progress = inputs.progress()
    assert progress.rows_shed == 0
    assert not (inputs.root / "left-out").exists()
    records = list(progress.records())
    assert records[-1]["service_rate"] > records[-1]["arrival_rate"] > 0
    longest = max(record["wait_seconds"] or 0 for record in records)
    assert longest == pytest.approx(progress.longest_wait_s, abs=1e-3)
    assert 0 < longest < 3600


@pytest.mark.parametrize("algorithm", ["meshjoin", "seek"])
def test_enrich_when_latency_cannot_be_kept_then_enrich_and_explain_say_what_can(
    inputs: Any, algorithm: str
) -> None:
    options = {
        "on": "k",
        "algorithm": algorithm,
        "state": inputs.state,
        "latency": "0.000001 seconds",
    }
    plan = dovetail.plan.enrich(inputs.stream("stream"), inputs.batch("table"), **options)
    for call in (plan.dataframe, plan.explain):
        with pytest.raises(ArgumentError) as raised:
            call()
        inputs.says(str(raised.value), "cannot be kept", "or longer", algorithm)
    assert not inputs.state.exists(), "nothing is staged for it"


def test_explain_when_shedding_and_latency_are_asked_for_then_tells_of_both(inputs: Any) -> None:
    plan = dovetail.plan.enrich(
        inputs.stream("stream"), inputs.batch("table"), on="k", state=inputs.state,
        shed="cluster", shed_to=inputs.root / "left-out", latency="5 seconds",
    )  # fmt: skip
    text = str(plan.explain())
    inputs.says(text, "settled within 5 s", "cluster:", str(inputs.root / "left-out"))


@pytest.mark.parametrize("option", [{"shed": "keep"}, {"latency": "5 seconds"}])
def test_enrich_when_the_input_is_a_batch_then_says_that_this_is_for_streams(
    inputs: Any, option: dict[str, str]
) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(option))}= is for streams"):
        dovetail.enrich(inputs.batch("stream"), inputs.batch("table"), on="k", **option)


def test_enrich_when_shed_to_cannot_be_a_directory_then_says_so_before_anything_is_staged(
    inputs: Any,
) -> None:
    (inputs.root / "file").write_text("x")
    with pytest.raises(ArgumentError, match="is a file; name a directory"):
        inputs.enrich(shed="keep", shed_to=inputs.root / "file" / "below")
    with pytest.raises(ArgumentError, match="lie in each other"):
        inputs.enrich(shed="keep", shed_to=inputs.state / "left-out")
    assert not inputs.state.exists()
