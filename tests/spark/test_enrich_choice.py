"""The algorithm of `auto` is recorded and kept; predicted stands beside measured."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.costs import calibrate, choice, storage
from dovetail.costs.meshjoin import MeshFactors
from dovetail.costs.storage import Storage
from dovetail.spark.state.chosen import CHOSEN, read_chosen

pytestmark = pytest.mark.spark

SEED = 20_261_117
FACTORS = MeshFactors(2e-10, 4e-8, 2e-8, 5e-10, 8e-8, lookup=8e-8, call=1e-4, chunk=5e-5)
MEMORY = "600KB"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine whose measurement takes no time; the places that were measured."""
    asked: list[str] = []

    def measure(directory: Any) -> Storage:
        asked.append(str(directory))
        return Storage("this machine", 0.0, 2e9)

    monkeypatch.setattr(storage, "measure_storage", measure)
    monkeypatch.setattr(storage, "_measured", {})
    monkeypatch.setattr(calibrate, "_factors_for", lambda *_: FACTORS)
    return asked


@pytest.fixture
def favour(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the models predict that one algorithm is far faster than all others."""
    predict = choice.predict

    def of(name: str) -> None:
        def told(plan: Any) -> list[Any]:
            found = predict(plan)
            return [replace(o, rate=o.rate * 1e6) if o.algorithm == name else o for o in found]

        monkeypatch.setattr(choice, "predict", told)

    return of


@pytest.fixture
def inputs(bench: Any) -> Any:
    rng = np.random.default_rng(SEED)
    bench.keyed("stream", np.minimum(rng.zipf(1.3, 600), 3500), files=2)
    bench.keyed("table", rng.permutation(3000), text=300)
    return bench


def test_auto_when_started_again_then_stays_what_it_was_and_measures_nothing(
    inputs: Any, measured: list[str], favour: Callable[[str], None]
) -> None:
    inputs.run(inputs.enrich(how="left", memory=MEMORY))
    first = read_chosen(inputs.state)
    assert first is not None
    assert first.choice.algorithm == inputs.progress().identity["algorithm"] == "seek"
    assert measured, "a new directory needs a measurement"
    kept = (inputs.state / CHOSEN).read_text()
    favour("ssbj")
    other = inputs.root / "other"
    inputs.enrich(how="left", memory=MEMORY, state=other)
    fresh = read_chosen(other)
    assert fresh is not None
    assert fresh.choice.algorithm == "ssbj", "the models say otherwise now"
    measured.clear()
    inputs.keyed("stream", np.arange(300), files=1)
    inputs.run(inputs.enrich(how="left", memory=MEMORY))
    assert (inputs.state / CHOSEN).read_text() == kept
    assert inputs.progress().identity["algorithm"] == "seek"
    shown = dovetail.plan.enrich(
        inputs.stream("stream"), inputs.batch("table"), on="k", how="left", memory=MEMORY,
        partitions=2, state=inputs.state,
    ).explain()  # fmt: skip
    assert f"seek, {first.choice.why}" in dict(shown.sections)["algorithm"]
    assert measured == [], "what was measured is in the state directory"
    inputs.check(f"restarted, seed {SEED}", inputs.enriched("left"))


def test_auto_when_a_scan_is_chosen_then_its_settings_follow_and_progress_has_both_costs(
    inputs: Any, measured: list[str], favour: Callable[[str], None]
) -> None:
    favour("ameshjoin")
    inputs.run(inputs.enrich(how="left", memory=MEMORY))
    progress = inputs.progress()
    about = f"seed {SEED}: {progress}"
    assert progress.identity["algorithm"] == "ameshjoin", about
    told, found = progress.predicted, progress.measured
    assert told is not None, about
    assert found is not None, about
    assert min(told.rate, found.rate, told.wait_seconds) > 0, about
    assert found.wait_seconds == progress.longest_wait_s, about
    read = sum(part.totals.bytes_read for part in progress.partitions)
    assert found.bytes_per_row == read / progress.rows_in[0] > 0, about
    records = list(progress.records())
    assert {record["predicted"]["rate"] for record in records} == {told.rate / 2}, about
    settings = {(record["tuned"]["w"], record["tuned"]["b"]) for record in records}
    assert len(settings) > 1, f"{about}: w and b stayed {settings}"
    assert sum(record["join_seconds"] for record in records) > 0, about
    inputs.check(about, inputs.enriched("left"))


def test_progress_when_values_are_cached_then_tells_how_many_rows_they_settled(
    inputs: Any, measured: list[str]
) -> None:
    inputs.run(inputs.enrich(how="left", memory="1MB", algorithm="seek"))
    progress = inputs.progress()
    assert 0 < progress.rows_cached < progress.rows_in[0], progress
    assert f"{progress.rows_cached:,} of them cached" in str(progress)
    assert sum(r["rows_cached"] for r in progress.records()) == progress.rows_cached
    assert progress.chosen is not None
    assert progress.chosen.choice.why == "as asked"
