"""A table that changes under a stream: staged again, taken up, and the old copies deleted."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dovetail
from dovetail.errors import ArgumentError, StateMismatchError, StateMissingError
from dovetail.spark.state import prepare

pytestmark = pytest.mark.spark

SEED = 61


def rewrite(bench: Any, rows: dict[int, str]) -> None:
    """Put other rows in place of the table's: `v` by `k`."""
    table = pa.table({"k": pa.array(list(rows)), "v": pa.array(list(rows.values()), pa.string())})
    bench.schemas["table"] = table.schema
    folder = bench.root / "table"
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / ".new", store_schema=False)
    (folder / ".new").replace(folder / "0000.parquet")


def versions(bench: Any) -> list[str]:
    return sorted(path.name for path in (bench.state / "table").glob("v*"))


def wait_until(happened: Callable[[], bool], query: Any, seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not happened():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < limit, "it does not happen"
        time.sleep(0.05)


def rows_taken(bench: Any) -> int:
    try:
        return bench.progress().rows_in[0]
    except StateMissingError:
        return 0


def found(bench: Any) -> dict[int, tuple[int, str | None]]:
    """What the sink holds: key and value by the number of the stream's row."""
    rows = bench.results().select("stream_id", "k", "v").collect()
    assert len(rows) == len({row["stream_id"] for row in rows}), "a row came twice"
    return {row["stream_id"]: (row["k"], row["v"]) for row in rows}


def path_of(bench: Any) -> Path:
    return bench.root / "table"


OLD = {key: f"old {key}" for key in range(100)}
NEW = {key: f"{'new' if key % 3 else 'old'} {key}" for key in range(10, 120)}


@pytest.mark.parametrize(
    ("algorithm", "given"), [("auto", "path"), ("auto", "frame"), ("ssbj", "path")]
)
def test_refresh_when_table_has_updates_inserts_and_deletes_then_running_stream_takes_them_up(
    bench: Any, algorithm: str, given: str
) -> None:
    rng = np.random.default_rng(SEED)
    keys = rng.integers(0, 130, 300)
    rewrite(bench, OLD)
    bench.keyed("stream", keys[:100], files=2)

    def table() -> Any:
        return path_of(bench) if given == "path" else bench.batch("table")

    enriched = bench.enrich(table(), how="left", algorithm=algorithm, memory="1MB")
    with bench.running(enriched) as query:
        wait_until(lambda: rows_taken(bench) == 100, query)
        rewrite(bench, NEW)
        assert (
            dovetail.refresh(bench.state, None if given == "path" else table()).version == "v000002"
        )
        bench.keyed("stream", keys[100:200], files=2)
        wait_until(lambda: rows_taken(bench) == 200, query)
        query.processAllAvailable()
    bench.keyed("stream", keys[200:], files=1)
    bench.run(bench.enrich(table(), how="left", algorithm=algorithm, memory="1MB"))
    expected = {
        number: (int(key), (OLD if number < 100 else NEW).get(int(key)))
        for number, key in enumerate(keys)
    }
    assert found(bench) == expected, f"{algorithm}, {given}, seed {SEED}"
    assert (bench.state / "table" / "current").read_text() == "v000002"


def test_refresh_when_an_interval_is_given_then_changes_are_found(bench: Any) -> None:
    rewrite(bench, OLD)
    bench.keyed("stream", np.arange(100), files=1)
    enriched = bench.enrich(path_of(bench), how="left", refresh="0.3 seconds")
    with bench.running(enriched) as query:
        wait_until(lambda: rows_taken(bench) == 100, query)
        assert versions(bench) == ["v000001"], "staged again although nothing had changed"
        rewrite(bench, NEW)
        current = bench.state / "table" / "current"
        wait_until(lambda: current.read_text() == "v000002", query)
        bench.keyed("stream", np.arange(100), files=1)
        wait_until(lambda: rows_taken(bench) == 200, query)
        query.processAllAvailable()
        # a table that cannot be read for a while: the stream goes on with what it has
        path_of(bench).rename(bench.root / "away")
        time.sleep(0.5)
        bench.keyed("stream", np.arange(100, 120), files=1)
        wait_until(lambda: rows_taken(bench) == 220, query)
        query.processAllAvailable()
        (bench.root / "away").rename(path_of(bench))
    got = found(bench)
    assert {number: got[number][1] for number in range(100)} == OLD
    for number in range(100, 220):
        assert got[number] == (number - 100, NEW.get(number - 100))


def test_refresh_when_nothing_has_changed_then_keeps_the_version(bench: Any) -> None:
    rewrite(bench, OLD)
    bench.keyed("stream", np.arange(5), files=1)
    bench.run(bench.enrich(path_of(bench)))
    before = bench.contents(bench.state / "table")
    for _ in range(2):
        assert dovetail.refresh(bench.state).version == "v000001"
    assert bench.contents(bench.state / "table") == before


def test_refresh_when_dataframe_is_another_over_the_same_files_then_stages_it(bench: Any) -> None:
    rewrite(bench, OLD)
    bench.keyed("stream", np.arange(100), files=1)
    bench.run(bench.enrich(bench.batch("table").where("k < 50"), how="left"))
    assert dovetail.refresh(bench.state, bench.batch("table").where("k < 50")).version == "v000001"
    assert dovetail.refresh(bench.state, bench.batch("table").where("k >= 50")).version == "v000002"
    bench.keyed("stream", np.arange(100), files=1)
    bench.run(bench.enrich(bench.batch("table"), how="left"))
    values = [value for _, (_, value) in sorted(found(bench).items())]
    old = list(OLD.values())
    assert values == [*old[:50], *[None] * 100, *old[50:]]


def test_versions_when_used_no_more_then_are_deleted(bench: Any) -> None:
    rewrite(bench, OLD)
    bench.keyed("stream", np.arange(120), files=1)
    bench.run(bench.enrich(path_of(bench), how="left"))
    for number in range(2, 6):
        rewrite(bench, dict.fromkeys(range(100), f"{number}"))
        assert dovetail.refresh(bench.state).version == f"v{number:06d}"
        # the last version, the one before, and what committed state still refers to
        assert versions(bench) == sorted({"v000001", f"v{number - 1:06d}", f"v{number:06d}"})
    bench.keyed("stream", np.arange(120), files=2)  # the first step after it lets v000001 go
    bench.run(bench.enrich(path_of(bench), how="left"))
    rewrite(bench, NEW)
    assert dovetail.refresh(bench.state).version == "v000006"
    assert versions(bench) == ["v000005", "v000006"]
    bench.keyed("stream", np.arange(120), files=1)
    bench.run(bench.enrich(path_of(bench), how="left"))
    got = found(bench)
    for number in range(360):
        key = number % 120
        wanted = (OLD, dict.fromkeys(range(100), "5"), NEW)[number // 120].get(key)
        assert got[number] == (key, wanted), number


def test_refresh_when_table_has_other_columns_or_none_then_says_so_and_keeps_the_copy(
    bench: Any,
) -> None:
    rewrite(bench, OLD)
    bench.keyed("stream", np.arange(100), files=1)
    bench.run(bench.enrich(path_of(bench)))
    before = bench.contents(bench.state)
    with pytest.raises(StateMismatchError, match="lacks 'v'"):
        dovetail.refresh(bench.state, bench.batch("table").select("k"))
    with pytest.raises(StateMismatchError, match=r"columns=.*string.*columns=.*int32"):
        dovetail.refresh(bench.state, bench.batch("table").selectExpr("k", "1 as v"))
    with pytest.raises(ArgumentError, match="neither the path of Parquet files nor the name"):
        dovetail.refresh(bench.state, bench.root / "nowhere")
    with pytest.raises(StateMissingError, match=r"nowhere is not a Dovetail state directory"):
        dovetail.refresh(bench.root / "nowhere")
    assert not (bench.root / "nowhere").exists()
    assert bench.contents(bench.state) == before
    bench.run(bench.enrich(path_of(bench)))
    assert len(found(bench)) == 100


def test_refresh_when_the_state_is_of_a_join_then_says_that_there_is_no_table(bench: Any) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(20), files=1)
    prepare(bench.state, 2)
    with pytest.raises(StateMissingError, match="has not run yet"):
        dovetail.refresh(bench.state)
    bench.run(bench.join())
    before = bench.contents(bench.state)
    with pytest.raises(StateMismatchError, match="is the state of a join, which has no table to"):
        dovetail.refresh(bench.state)
    assert bench.contents(bench.state) == before
    assert not (bench.state / "table").exists()
    (bench.state / "table").mkdir()  # an earlier version left it behind
    with pytest.raises(StateMismatchError, match="is the state of a join"):
        dovetail.refresh(bench.state)


def test_refresh_when_the_query_has_not_run_then_stages_and_progress_says_so(bench: Any) -> None:
    rewrite(bench, OLD)
    bench.keyed("stream", np.arange(5), files=1)
    bench.enrich(path_of(bench))
    with pytest.raises(StateMissingError, match="has not run yet: its state is prepared"):
        dovetail.progress(bench.state)
    assert str(dovetail.refresh(bench.state)) == "unchanged, v000001"
    rewrite(bench, NEW)
    done = dovetail.refresh(bench.state)
    assert (str(done), done.version, done.changed) == ("staged as v000002", "v000002", True)


def test_refresh_when_the_staged_table_was_lost_then_asks_for_a_backup(bench: Any) -> None:
    rewrite(bench, OLD)
    bench.keyed("stream", np.arange(5), files=1)
    bench.run(bench.enrich(path_of(bench)))
    (bench.state / "table" / "current").unlink()
    with pytest.raises(StateMissingError, match=r"current is gone.*from a backup"):
        dovetail.refresh(bench.state)


def test_refresh_when_table_was_a_dataframe_then_asks_for_the_new_one(bench: Any) -> None:
    rewrite(bench, OLD)
    bench.keyed("stream", np.arange(5), files=1)
    bench.enrich(bench.batch("table"))
    with pytest.raises(ArgumentError, match=r"given as a DataFrame.*refresh\(state, table="):
        dovetail.refresh(bench.state)


def test_refresh_when_interrupted_then_the_old_version_stays_in_use(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail.spark.jobs import staging

    rewrite(bench, OLD)
    bench.keyed("stream", np.arange(100), files=1)
    bench.run(bench.enrich(path_of(bench)))
    rewrite(bench, NEW)
    with monkeypatch.context() as patch:
        patch.setattr(staging, "_seal", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dovetail.refresh(bench.state)
    assert (bench.state / "table" / "current").read_text() == "v000001"
    assert versions(bench) == ["v000001", "v000002"], "half a version is left"
    bench.keyed("stream", np.arange(100), files=1)
    bench.run(bench.enrich(path_of(bench)))
    assert {value for _, value in found(bench).values()} == set(OLD.values())
    assert dovetail.refresh(bench.state).version == "v000002"
    bench.keyed("stream", np.arange(100), files=1)
    bench.run(bench.enrich(path_of(bench), how="inner"))
    wanted = {key: value for key, value in NEW.items() if key < 100}
    assert {k: v for number, (k, v) in found(bench).items() if number >= 200} == wanted
