"""Bad input to `enrich`: one clear error each, and the query goes on once it is put right."""

import datetime as dt
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import PythonException

import dovetail
from dovetail import errors
from dovetail.spark.sources import tables

pytestmark = pytest.mark.spark


# -- arguments ------------------------------------------------------------------------------

Wrong = tuple[list[str], list[str], dict[str, Any], type[Exception], list[str]]
STREAM, TABLE = ["1L as k", "1 as a"], ["1L as k", "2 as b"]
WRONG: dict[str, Wrong] = {
    "a key that the table lacks": (
        STREAM, TABLE, {"on": "a"},
        errors.UnknownColumnError, ["the table input has no column 'a'", "it has 'k', 'b'"],
    ),
    "a key that the stream lacks": (
        STREAM, TABLE, {"on": ("kk", "k")},
        errors.UnknownColumnError, ["the stream input has no column 'kk'", "it has 'k', 'a'"],
    ),
    "a column that the table lacks": (
        STREAM, TABLE, {"on": "k", "columns": ["b", "nope"]},
        errors.UnknownColumnError, ["the table input has no column 'nope'"],
    ),
    "one name as columns": (
        STREAM, TABLE, {"on": "k", "columns": "b"},
        errors.ArgumentError, ["columns='b' is not a list of column names"],
    ),
    "a number among the columns": (
        STREAM, TABLE, {"on": "k", "columns": [1]},
        errors.ArgumentError, ["columns=[1] is not a list of column names"],
    ),
    "clashing columns": (
        ["1L as k", "1 as x"], ["1L as k", "2 as X"], {"on": "k"},
        errors.ColumnClashError, ["both inputs have the column 'X'", "table.withColumnRenamed"],
    ),
    "a clash with a chosen column": (
        ["1L as k", "1 as x"], ["1L as k", "2 as x", "3 as y"], {"on": "k", "columns": ["x"]},
        errors.ColumnClashError, ["both inputs have the column 'x'"],
    ),
    "duplicate names in the table": (
        STREAM, ["1L as k", "1 as b", "2 as B"], {"on": "k"},
        errors.ColumnClashError, ["the table input has two columns named 'B'", "rename"],
    ),
    "key types that differ": (
        STREAM, ["'1' as k"], {"on": "k"},
        errors.KeyTypeError, ["stream 'k' is bigint", "table 'k' is string", "cast one of them"],
    ),
    "an array as key": (
        ["array(1) as k"], ["array(1) as k"], {"on": "k"},
        errors.KeyTypeError, ["cannot join on a column of type list"],
    ),
    "a collated string as key": (
        ["'a' as k"], ["'a' collate UTF8_LCASE as k"], {"on": "k"},
        errors.KeyTypeError, ["table join column 'k'", "collation UTF8_LCASE", "plain STRING"],
    ),
    "no key": (STREAM, TABLE, {"on": []}, errors.ArgumentError, ["on= names no column"]),
    "another kind of join": (
        STREAM, TABLE, {"on": "k", "how": "outer"},
        errors.ArgumentError, ["how='outer' is not supported by enrich", "'left'", "'anti'"],
    ),
    "an unknown algorithm": (
        STREAM, TABLE, {"on": "k", "algorithm": "xjoin"},
        errors.ArgumentError, ["algorithm='xjoin' is not known to enrich", "'seek'", "'auto'"],
    ),
    "an order that is no flag": (
        STREAM, TABLE, {"on": "k", "ordered": "k"},
        errors.ArgumentError, ["ordered='k' is neither True nor False"],
    ),
    "an interval without a unit": (
        STREAM, "path", {"on": "k", "refresh": "5"},
        errors.ArgumentError, ["refresh='5' is not an interval", "'5 minutes'"],
    ),
    "an interval of nothing": (
        STREAM, "path", {"on": "k", "refresh": dt.timedelta(0)},
        errors.ArgumentError, ["is not an interval above zero"],
    ),
    "an interval for a DataFrame": (
        STREAM, TABLE, {"on": "k", "refresh": "5 minutes"},
        errors.ArgumentError, ["refresh= needs a table that can be read again", "path or name"],
    ),
    "a budget too small": (
        STREAM, TABLE, {"on": "k", "memory": "1MB", "partitions": 8},
        errors.MemoryBudgetError, ["memory='1MB' is too small", "8 partitions need at least"],
    ),
    "memory that is no size": (
        STREAM, TABLE, {"on": "k", "memory": "lots"},
        errors.ArgumentError, ["memory=", "not a size: 'lots'"],
    ),
    "no partition": (
        STREAM, TABLE, {"on": "k", "partitions": 0},
        errors.ArgumentError, ["partitions=0 is not a whole number of 1 or more"],
    ),
    "state in an object store": (
        STREAM, TABLE, {"on": "k", "state": "s3://bucket/state"},
        errors.ArgumentError, ["s3:// is not one", "shared path"],
    ),
    "a path that is not there": (
        STREAM, "/no/such/table", {"on": "k"},
        errors.ArgumentError, ["table='/no/such/table' is neither", "PATH_NOT_FOUND"],
    ),
    "a name that nobody knows": (
        STREAM, "no_such_table", {"on": "k"},
        errors.ArgumentError, ["table='no_such_table' is neither", "TABLE_OR_VIEW_NOT_FOUND"],
    ),
    "a Delta table without a log": (
        STREAM, "delta", {"on": "k"},
        errors.TableUnreadableError, ["the Delta table", "cannot be read", "log"],
    ),
    "a folder of other files": (
        STREAM, "other", {"on": "k"},
        errors.ArgumentError, ["is neither the path of Parquet files"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_enrich_when_arguments_are_wrong_then_says_what_and_stages_nothing(
    frames: Any, tmp_path: Path, case: str
) -> None:
    columns, table, options, kind, fragments = WRONG[case]
    given: Any = frames(*table) if isinstance(table, list) else table
    if table == "path":
        given = tmp_path / "table"
        frames(*TABLE).write.parquet(str(given))
    elif table in ("delta", "other"):
        given = tmp_path / "table"
        (given / "_delta_log").mkdir(parents=True)
        if table == "other":
            (given / "_delta_log").rmdir()
    with pytest.raises(errors.DovetailError) as raised:
        dovetail.enrich(frames(*columns), given, **{"state": tmp_path / "state", **options})
    assert type(raised.value) is kind, f"{case}: {raised.value!r}"
    for fragment in fragments:
        assert fragment in str(raised.value), f"{case}: {raised.value}"
    assert not (tmp_path / "state").exists()


def test_enrich_when_table_streams_then_says_so(bench: Any) -> None:
    for name in ("stream", "table"):
        bench.keyed(name, np.arange(3), files=1)
    with pytest.raises(errors.ArgumentError, match=r"the table streams.*read instead"):
        bench.enrich(bench.stream("table"))
    with pytest.raises(errors.ArgumentError, match="state= is needed"):
        bench.enrich(state=None)
    assert not bench.state.exists()


# -- in a query -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun_once(bench_at: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A query that has run over some files; new ones have come since."""
    bench = bench_at(tmp_path_factory.mktemp("begun") / "root")
    bench.root.mkdir()
    rng = np.random.default_rng(12)
    bench.keyed("stream", rng.integers(0, 4000, 300), files=1)
    bench.keyed("table", rng.permutation(3000), text=200)
    bench.run(enrich_of(bench))
    bench.keyed("stream", rng.integers(0, 4000, 300), files=1)
    shutil.copytree(bench.root, bench.root.with_name("copy"), copy_function=shutil.copy2)
    return bench


@pytest.fixture
def begun(begun_once: Any) -> Any:
    """The same query for every test, put back to how it was; its files refer to its own path."""
    shutil.rmtree(begun_once.root)
    shutil.copytree(begun_once.root.with_name("copy"), begun_once.root)
    return begun_once


def enrich_of(bench: Any, **options: Any) -> Any:
    """With one partition on two cores no operator stays in a worker: every step reads its state."""
    kept = {"memory": "300KB", "partitions": 1, "how": "left", "algorithm": "seek"}
    options = {**kept, **options}
    return bench.enrich(options.pop("table", bench.root / "table"), **options)


def complaint(bench: Any, **options: Any) -> str:
    """What goes wrong, when the query is planned or when it runs."""
    try:
        enriched = enrich_of(bench, **options)
    except errors.DovetailError as error:
        return f"{type(error).__name__}: {error}"
    return bench.failure(enriched)


def goes_on(bench: Any, about: str) -> None:
    """Nothing was lost: the query goes on, and its result is right."""
    bench.run(enrich_of(bench))
    bench.check(about, bench.enriched("left"))


@pytest.mark.parametrize(
    ("changed", "fragment"),
    [
        ({"partitions": 2, "memory": "1MB"}, "partitions=1, but now partitions=2"),
        ({"how": "inner"}, "how='left', but now how='inner'"),
        ({"algorithm": "ssbj"}, "algorithm='seek', but now algorithm='ssbj'"),
        ({"ordered": True}, "ordered=False, but now ordered=True"),
        ({"columns": ["table_id"]}, "table={'k'"),
    ],
)
def test_state_when_made_with_other_settings_then_is_refused_and_left_alone(
    begun: Any, changed: dict[str, Any], fragment: str
) -> None:
    before = begun.contents(begun.state)
    with pytest.raises(errors.StateMismatchError) as raised:
        enrich_of(begun, **changed)
    begun.says(str(raised.value), str(begun.state), fragment, "Go back to the old setting")
    assert begun.contents(begun.state) == before


def test_state_when_of_a_join_or_of_another_query_then_is_refused(bench: Any) -> None:
    for name in ("stream", "table", "left", "right"):
        bench.keyed(name, np.arange(30), files=1)
    bench.run(bench.join(partitions=1))
    before = bench.contents(bench.state)
    with pytest.raises(errors.StateMismatchError, match="job='join', but now job='enrich'"):
        enrich_of(bench)
    assert bench.contents(bench.state) == before
    other = bench.root / "other"
    first = enrich_of(bench, state=other)
    first.writeStream.format("noop").option("checkpointLocation", str(bench.root / "c")).trigger(
        availableNow=True
    ).start().awaitTermination()
    text = bench.failure(enrich_of(bench, state=other), "noop", bench.root / "d")
    bench.says(text, "StateMismatchError", str(other), "belongs to another query")
    with pytest.raises(errors.StateMismatchError, match="job='enrich', but now job='join'"):
        bench.join(partitions=1, state=other)


@pytest.mark.parametrize(
    ("name", "position", "how"),
    [
        ("records.bin", 0.5, "refresh"),
        ("records.bin", 0.9, "restore"),
        ("codes.bin", 0.5, "refresh"),
        ("fences.bin", 0.5, "restore"),
        ("table.json", 0.5, "refresh"),
    ],
)
def test_staged_table_when_damaged_then_names_the_file_and_either_remedy_works(
    begun: Any, name: str, position: float, how: str
) -> None:
    path = begun.state / "table" / "v000001" / "p00000" / name
    before = begun.flip(path, position)
    text = complaint(begun)
    begun.says(text, "StateCorruptError", str(path), "damaged", "dovetail.refresh")
    if how == "restore":
        path.write_bytes(before)
    else:
        assert dovetail.refresh(begun.state).version == "v000002"
    goes_on(begun, f"after {name} was damaged, {how}")


@pytest.mark.parametrize(
    ("lost", "how"),
    [
        ("v000001/p00000", "refresh"),
        ("v000001/p00000/records.bin", "refresh"),
        ("v000001/p00000/codes.bin", "restore"),
    ],
)
def test_staged_table_when_partly_lost_then_says_so_and_either_remedy_works(
    begun: Any, lost: str, how: str
) -> None:
    path = begun.state / "table" / lost
    shutil.move(path, begun.root / "aside")
    text = complaint(begun)
    begun.says(text, "StateMissingError", str(path), "dovetail.refresh")
    if how == "restore":
        shutil.move(begun.root / "aside", path)
    else:
        assert dovetail.refresh(begun.state).version == "v000002"
    goes_on(begun, f"after {lost} was gone, {how}")


def test_staged_table_when_all_of_it_is_lost_then_is_staged_again(begun: Any) -> None:
    """Under a new number: what is committed may refer to the one that was lost."""
    shutil.rmtree(begun.state / "table")
    goes_on(begun, "after the staged table was deleted")
    assert (begun.state / "table" / "current").read_text() == "v000002"


def test_version_when_its_description_is_gone_then_says_so_and_goes_on_once_it_is_back(
    begun: Any,
) -> None:
    path = begun.state / "table" / "v000001" / "staged.json"
    text = path.read_text()
    for damage in (None, "{"):
        path.unlink() if damage is None else path.write_text(damage)
        for call in (enrich_of, lambda bench: dovetail.refresh(bench.state)):
            with pytest.raises(errors.StateMissingError, match=re.escape(str(path))):
                call(begun)
        path.write_text(text)
    goes_on(begun, "after staged.json was gone for a while")


STAGE_AND_DIE = """
import os, sys
import dovetail
from dovetail.spark.jobs import staging
from dovetail.spark.session import local_session

staging._seal = lambda *_: os._exit(86)
spark = local_session("dies", 2)
table = spark.read.parquet(sys.argv[1])
dovetail.enrich(table.limit(0), sys.argv[1], on="k", columns=[], state=sys.argv[2],
                partitions=1)
"""


@pytest.mark.full
def test_staging_when_killed_before_the_end_then_starts_over(bench: Any) -> None:
    bench.keyed("stream", np.arange(200), files=1)
    bench.keyed("table", np.arange(100, 300), files=2)
    table = bench.root / "table"
    command = [sys.executable, "-c", STAGE_AND_DIE, str(table), str(bench.state)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 86, done.stderr
    half = bench.state / "table" / "v000001"
    assert (half / "p00000").exists()
    assert not (half / "staged.json").exists()
    (half / "p00000" / "records.bin").write_bytes(b"half a file")
    (half / "attempt-of-one-that-died").mkdir()
    goes_on(bench, "after staging was killed")
    assert not list(half.glob("attempt-*"))


def test_staging_when_a_task_fails_then_says_why_and_can_be_tried_again(
    bench: Any, spark: Any
) -> None:
    from pyspark.sql import functions as F

    bench.keyed("stream", np.arange(50), files=1)
    bench.keyed("table", np.arange(30), files=1)
    broken = F.udf(lambda text: 1 // 0)
    table = bench.batch("table").withColumn("table_text", broken("table_text"))
    with pytest.raises(PythonException, match="ZeroDivisionError"):
        enrich_of(bench, table=table)
    assert not (bench.state / "table" / "current").exists()
    goes_on(bench, "after staging failed")


@pytest.mark.parametrize("times", [1, 99])
def test_staging_when_table_changes_meanwhile_then_starts_over_and_gives_up_in_the_end(
    bench: Any, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    bench.keyed("stream", np.arange(50), files=1)
    bench.keyed("table", np.arange(30), files=1)
    calls = 0

    def changing(table: Any) -> Any:
        nonlocal calls
        if threading.current_thread() is not threading.main_thread():
            return None  # the refresher of another test
        calls += 1
        return [["a file", min(calls, 2 * times)]]

    with monkeypatch.context() as patch:
        patch.setattr(tables, "fingerprint", changing)
        if times == 1:
            enrich_of(bench)
            assert calls == 4, "staged twice"
        else:
            with pytest.raises(errors.TableChangedError, match=r"changed while.*3 times in a row"):
                enrich_of(bench)
            assert not list((bench.state / "table").glob("v*"))
    goes_on(bench, "after the table had changed")


def test_row_when_too_wide_for_the_budget_then_says_the_least_memory_that_would_do(
    bench: Any, conf: Any
) -> None:
    bench.keyed("stream", np.arange(6000), files=1)
    bench.keyed("stream", np.arange(3), files=1, text=80_000)
    bench.keyed("table", np.arange(2000), files=1)
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    text = complaint(bench, memory="270KB")
    bench.says(text, "MemoryBudgetError", "a row of 78.2 KB does not fit")
    least = re.search(r"memory='([\d.]+ [KM]B)' would do", text)
    assert least, text
    bench.run(enrich_of(bench, memory=least[1]))
    bench.check(f"with {least[1]} after too little", bench.enriched("left"))


def test_budget_when_too_small_for_a_page_then_says_the_least_that_would_do(bench: Any) -> None:
    """Staged with much memory, so in large pages; then less of it is given."""
    bench.keyed("stream", np.arange(2000), files=1)
    bench.keyed("table", np.arange(40_000), files=1, text=1)
    bench.run(enrich_of(bench, memory="512MB"))
    bench.keyed("stream", np.arange(100), files=1)
    text = complaint(bench, memory="300KB")
    bench.says(text, "MemoryBudgetError", "pages and their index need at least", "raise memory=")
    least = re.search(r"need at least ([\d.]+ [KM]B)", text)
    assert least, text
    bench.run(enrich_of(bench, memory=least[1]))
    bench.check(f"with {least[1]} after too little", bench.enriched("left"))


def test_state_when_its_path_is_a_file_then_says_so(bench: Any) -> None:
    for name in ("stream", "table"):
        bench.keyed(name, np.arange(10), files=1)
    bench.state.write_text("a file")
    with pytest.raises(errors.StorageError, match=re.escape(str(bench.state))):
        enrich_of(bench)
    assert bench.state.read_text() == "a file"
    bench.state.unlink()
    goes_on(bench, "after the file was gone")


def test_disk_when_full_then_says_so_and_goes_on_once_there_is_room(
    bench: Any, small_disk: Path
) -> None:
    bench.keyed("stream", np.arange(600), files=2, text=1000)
    bench.keyed("table", np.arange(2000), files=1, text=400)
    state = small_disk / "state"
    for _ in range(2):  # trying again does not make it worse
        with pytest.raises(errors.StorageError) as raised:
            enrich_of(bench, state=state)
        bench.says(str(raised.value), str(small_disk), "No space left on device", "make room")
    subprocess.run(["mount", "-o", "remount,size=1050k", str(small_disk)], check=True)
    enriched = enrich_of(bench, state=state)  # there is room for the table, not for the results
    text = bench.failure(enriched)
    bench.says(text, "StorageError", str(small_disk), "No space left on device", "make room")
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    bench.run(enrich_of(bench, state=state))
    bench.check("after the disk was full", bench.enriched("left"))
