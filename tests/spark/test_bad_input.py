"""Bad input: one clear error each, and the state is left as usable as it was."""

import datetime as dt
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import dovetail
from dovetail import errors

pytestmark = pytest.mark.spark


# -- arguments ------------------------------------------------------------------------------


Wrong = tuple[list[str], list[str], dict[str, Any], type[Exception], list[str]]
LEFT, RIGHT = ["1L as k", "1 as a"], ["1L as k", "2 as b"]
WRONG: dict[str, Wrong] = {
    "unknown column on the right": (
        LEFT, RIGHT, {"on": "a"},
        errors.UnknownColumnError, ["the right input has no column 'a'", "it has 'k', 'b'"],
    ),
    "unknown column on the left": (
        LEFT, RIGHT, {"on": ("kk", "k")},
        errors.UnknownColumnError, ["the left input has no column 'kk'", "it has 'k', 'a'"],
    ),
    "clashing columns": (
        ["1L as k", "1 as x", "2 as Y"], ["1L as k", "1 as x", "2 as y"], {"on": "k"},
        errors.ColumnClashError, ["both inputs have the columns 'x', 'y'", "withColumnRenamed"],
    ),
    "key joined under two names that clashes": (
        ["1L as k", "1L as b"], ["1L as b"], {"on": ("k", "b")},
        errors.ColumnClashError, ["'b'", "rename on one side"],
    ),
    "duplicate names on one side": (
        ["1L as k", "1 as a", "2 as A"], RIGHT, {"on": "k"},
        errors.ColumnClashError, ["the left input has two columns named 'A'", "rename"],
    ),
    "key types that differ": (
        LEFT, ["'1' as k"], {"on": "k"},
        errors.KeyTypeError, ["left 'k' is bigint", "right 'k' is string", "cast one of them"],
    ),
    "decimals that have no common type": (
        ["cast(1 as decimal(38,2)) as k"], ["cast(1 as decimal(10,3)) as k"], {"on": "k"},
        errors.KeyTypeError, ["decimal(38,2)", "decimal(10,3)", "cast one of them"],
    ),
    "an array as key": (
        ["array(1) as k"], ["array(1) as k"], {"on": "k"},
        errors.KeyTypeError, ["cannot join on a column of type list", "use a field of it"],
    ),
    "a struct as key": (
        ["struct(1 as f) as k"], ["struct(1 as f) as k"], {"on": "k"},
        errors.KeyTypeError, ["cannot join on a column of type struct"],
    ),
    "a collated string as key": (
        ["'A' collate UTF8_LCASE as k"], ["'a' collate UTF8_LCASE as k"], {"on": "k"},
        errors.KeyTypeError, ["left join column 'k'", "collation UTF8_LCASE", "plain STRING"],
    ),
    "a column that Arrow has no type for": (
        ["1L as k", "interval '1' year as gap"], RIGHT, {"on": "k"},
        errors.ArgumentError, ["the left input has a column", "Arrow", "select()"],
    ),
    "no key": (LEFT, RIGHT, {"on": []}, errors.ArgumentError, ["on= names no column"]),
    "a number as key": (LEFT, RIGHT, {"on": 5}, errors.ArgumentError, ["on= names no column"]),
    "a Column as key": (
        LEFT, RIGHT, {"on": F.col},
        errors.ArgumentError, ["on= names no column", "a name, a list of names, or pairs"],
    ),
    "three names in a pair": (
        LEFT, RIGHT, {"on": [("k", "k", "k")]},
        errors.ArgumentError, ["('k', 'k', 'k') is none of these"],
    ),
    "a band on strings": (
        ["'1' as k"], ["'1' as k"], {"on": "k", "within": 1},
        errors.BandKeyError, ["a band join (within=) needs a numeric, date or timestamp", "string"],
    ),
    "a band on booleans": (
        ["true as k"], ["true as k"], {"on": "k", "within": 1},
        errors.BandKeyError, ["a band join (within=) needs a numeric, date or timestamp", "bool"],
    ),
    "a band on two keys": (
        ["1L as k", "1 as j"], ["1L as k", "1 as j"], {"on": ["k", "j"], "within": 1},
        errors.BandKeyError, ["a band join (within=) has one key, not 2"],
    ),
    "a negative band": (
        LEFT, RIGHT, {"on": "k", "within": -1},
        errors.BandKeyError, ["within=-1 is not a distance", "0 or more"],
    ),
    "a band of NaN": (
        LEFT, RIGHT, {"on": "k", "within": float("nan")},
        errors.BandKeyError, ["within=nan is not a distance"],
    ),
    "a time span on numbers": (
        LEFT, RIGHT, {"on": "k", "within": dt.timedelta(seconds=1)},
        errors.BandKeyError, ["is a time span, but the key has type bigint"],
    ),
    "a band of text": (
        LEFT, RIGHT, {"on": "k", "within": "5"},
        errors.BandKeyError, ["within='5' is a text, but the key has type bigint"],
    ),
    "a band by xjoin": (
        LEFT, RIGHT, {"on": "k", "within": 1, "algorithm": "xjoin"},
        errors.ArgumentError, ["algorithm='xjoin' cannot do a band join", "works with shj"],
    ),
    "a budget too small": (
        LEFT, RIGHT, {"on": "k", "memory": "100KB", "partitions": 4},
        errors.MemoryBudgetError,
        ["memory='100KB' is too small", "4 partitions need at least 256.0 KB", "Raise memory="],
    ),
    "memory that is no size": (
        LEFT, RIGHT, {"on": "k", "memory": "lots"},
        errors.ArgumentError, ["memory=", "not a size: 'lots'", "'64MB'"],
    ),
    "memory in unknown units": (
        LEFT, RIGHT, {"on": "k", "memory": "64 parsecs"},
        errors.ArgumentError, ["not a size: '64 parsecs'"],
    ),
    "memory below nothing": (
        LEFT, RIGHT, {"on": "k", "memory": "-5MB"},
        errors.ArgumentError, ["a size cannot be negative: '-5MB'"],
    ),
    "memory as a fraction": (
        LEFT, RIGHT, {"on": "k", "memory": 0.5}, errors.ArgumentError, ["not a size: 0.5"],
    ),
    "an unknown algorithm": (
        LEFT, RIGHT, {"on": "k", "algorithm": "quantum"},
        errors.ArgumentError, ["algorithm='quantum' is not known", "auto", "shj", "xjoin"],
    ),
    "another kind of join": (
        LEFT, RIGHT, {"on": "k", "how": "left"},
        errors.ArgumentError, ["how='left' is not supported", "join; it does 'inner'"],
    ),
    "no partition": (
        LEFT, RIGHT, {"on": "k", "partitions": 0},
        errors.ArgumentError, ["partitions=0 is not a whole number of 1 or more"],
    ),
    "partitions as text": (
        LEFT, RIGHT, {"on": "k", "partitions": "2"},
        errors.ArgumentError, ["partitions='2' is not a whole number"],
    ),
    "no slice": (
        LEFT, RIGHT, {"on": "k", "slice_ms": 0},
        errors.ArgumentError, ["slice_ms=0 is not a whole number of 1 or more"],
    ),
    "state in an object store": (
        LEFT, RIGHT, {"on": "k", "state": "s3://bucket/state"},
        errors.ArgumentError, ["s3://bucket/state", "s3:// is not one", "shared path"],
    ),
    "state without a name": (
        LEFT, RIGHT, {"on": "k", "state": " "},
        errors.ArgumentError, ["state= is empty", "beside the query's checkpoint"],
    ),
}  # fmt: skip


def test_inputs_when_they_are_paths_then_the_error_says_to_read_them(frames: Any) -> None:
    frame, path = frames("1L as k"), "data/orders"
    for call in (
        lambda: dovetail.join(path, frame, on="k"),  # type: ignore[arg-type]
        lambda: dovetail.join(frame, path, on="k"),  # type: ignore[arg-type]
        lambda: dovetail.plan.join(frame, path, on="k").explain(),  # type: ignore[arg-type]
        lambda: dovetail.join_all({"a": frame, "b": path}, on="k"),  # type: ignore[dict-item]
        lambda: dovetail.enrich(path, frame, on="k"),  # type: ignore[arg-type]
        lambda: dovetail.plan.enrich(path, frame, on="k").explain(),  # type: ignore[arg-type]
    ):
        with pytest.raises(
            errors.ArgumentError, match="is a str, 'data/orders', but has"
        ) as raised:
            call()
        assert "spark.readStream" in str(raised.value)


@pytest.mark.parametrize("case", WRONG)
def test_join_when_arguments_are_wrong_then_says_what_and_what_to_do(
    frames: Any, case: str
) -> None:
    left, right, options, kind, fragments = WRONG[case]
    if case == "a Column as key":
        options = {"on": F.col("k")}
    with pytest.raises(errors.DovetailError) as raised:
        dovetail.join(frames(*left), frames(*right), **options)
    assert type(raised.value) is kind, f"{case}: {raised.value!r}"
    for fragment in fragments:
        assert fragment in str(raised.value), f"{case}: {raised.value}"


def test_join_when_budget_is_what_the_error_said_then_is_accepted(frames: Any) -> None:
    left, right = frames(*LEFT), frames(*RIGHT)
    with pytest.raises(errors.MemoryBudgetError) as raised:
        dovetail.join(left, right, on="k", memory=1, partitions=3)
    least = re.search(r"at least ([\d.]+ KB)", str(raised.value))
    assert least, raised.value
    assert dovetail.join(left, right, on="k", memory=least[1], partitions=3).count() == 1


@pytest.mark.parametrize("static", ["left", "right"])
def test_join_when_only_one_side_streams_then_says_which(bench: Any, static: str) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(3), files=1)
    frames = {side: bench.stream(side) for side in ("left", "right")}
    frames[static] = bench.batch(static)
    with pytest.raises(errors.ArgumentError, match=f"the {static} one does not") as raised:
        dovetail.join(frames["left"], frames["right"], on="k", state=bench.state)
    assert "readStream" in str(raised.value)
    assert not bench.state.exists()


def test_join_when_streaming_without_state_then_asks_for_it(bench: Any) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(3), files=1)
    with pytest.raises(errors.ArgumentError, match=r"state= is needed") as raised:
        bench.join(state=None)
    assert "spark.sql.streaming.checkpointLocation" in str(raised.value)


# -- in a query -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun_once(bench_at: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A query that has run over some files; new ones have come since.

    With one partition on two cores no operator stays in a worker: every step reads the state.
    """
    bench = bench_at(tmp_path_factory.mktemp("begun") / "root")
    bench.root.mkdir()
    rng = np.random.default_rng(11)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 100, 800), files=1)
    bench.run(join_of(bench))
    assert bench.progress().spilled_bytes > 0
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 100, 200), files=1)
    shutil.copytree(bench.root, bench.root.with_name("copy"))
    return bench


@pytest.fixture
def begun(begun_once: Any) -> Any:
    """The same query for every test, put back to how it was; its files refer to its own path."""
    shutil.rmtree(begun_once.root)
    shutil.copytree(begun_once.root.with_name("copy"), begun_once.root)
    return begun_once


def join_of(bench: Any, **options: Any) -> DataFrame:
    return bench.join(**{"memory": "90KB", "partitions": 1, **options})


def goes_on(bench: Any, about: str) -> None:
    """Nothing was lost: the query goes on, and its result is right."""
    bench.run(join_of(bench))
    bench.check(about)


def test_input_batch_when_larger_than_the_budget_then_is_taken_in_by_slices(
    bench: Any, conf: Any
) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(2000), files=1)
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    bench.run(join_of(bench, memory="70KB"))
    bench.check("with batches of 112 KB in 70 KB")


def test_row_when_too_wide_for_the_budget_then_says_the_least_memory_that_would_do(
    bench: Any,
) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(300), files=1)
    bench.keyed("left", np.arange(3), files=1, text=40_000)
    text = bench.failure(join_of(bench, memory="200KB", partitions=2))
    bench.says(text, "MemoryBudgetError", "a row of 39.1 KB does not fit", "over 2 partitions")
    least = re.search(r"memory='([\d.]+ KB)' over 2 partitions would do", text)
    assert least, text
    bench.run(join_of(bench, memory=least[1], partitions=2))
    bench.check(f"with {least[1]} after 200KB")


def test_shj_when_over_budget_then_names_xjoin(bench: Any) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(3000), files=1)
    text = bench.failure(join_of(bench, algorithm="shj", memory="200KB"))
    bench.says(text, "MemoryBudgetError", "algorithm 'shj' keeps every row", "algorithm='xjoin'")
    bench.run(join_of(bench, algorithm="shj", memory="4MB"))  # the other way out
    bench.check("shj with more memory")


def test_state_when_of_another_query_then_is_refused_and_left_alone(begun: Any) -> None:
    text = begun.failure(join_of(begun), "noop", begun.root / "another checkpoint")
    begun.says(text, "StateMismatchError", str(begun.state), "checkpoint is new")
    begun.says(text, "state= of its")
    goes_on(begun, "after another query tried")


@pytest.mark.parametrize(
    ("changed", "fragment"),
    [
        ({"partitions": 3, "memory": "300KB"}, "partitions=1, but now partitions=3"),
        ({"on": ("left_id", "right_id")}, "on=[['k'], ['k']], but now on=[['left_id']"),
        ({"algorithm": "shj"}, "algorithm='diner', but now algorithm='shj'"),
        ({"within": 3, "memory": None}, "within=None, but now within='3'"),
    ],
)
def test_state_when_made_with_other_settings_then_is_refused_and_left_alone(
    begun: Any, changed: dict[str, Any], fragment: str
) -> None:
    sides = [begun.stream("left"), begun.stream("right")]
    if "on" in changed:
        sides[1] = sides[1].withColumnRenamed("k", "k2")
    options = {"on": "k", "memory": "90KB", "partitions": 1, "state": begun.state, **changed}
    before = begun.contents(begun.state)
    with pytest.raises(errors.StateMismatchError) as raised:
        dovetail.join(*sides, **options)
    begun.says(str(raised.value), str(begun.state), fragment, "Go back to the old setting")
    assert begun.contents(begun.state) == before


def test_state_when_input_has_other_columns_then_is_refused_and_left_alone(begun: Any) -> None:
    left = begun.stream("left").withColumn("more", F.lit(1))
    before = begun.contents(begun.state)
    with pytest.raises(errors.StateMismatchError, match=r"left=.*more"):
        dovetail.join(
            left, begun.stream("right"), on="k", memory="90KB", partitions=1, state=begun.state
        )
    assert begun.contents(begun.state) == before


def newest(state: Path, pattern: str) -> Path:
    """The file of a partition that was written last; blocks by what the manifest refers to."""
    return max(state.glob(f"p00000/{pattern}"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize(
    ("lost", "kind", "fragment"),
    [
        ("", "StateMissingError", "is missing or empty"),
        ("identity.json", "StateMissingError", "is missing or lacks its identity.json"),
        ("p00000/v*", "StateMissingError", "is missing or empty"),
        ("p00000/*-log.arrows", "StateMissingError", "the state file"),
    ],
)
def test_state_when_partly_lost_then_says_so_and_goes_on_once_it_is_back(
    begun: Any, lost: str, kind: str, fragment: str
) -> None:
    aside = begun.root / "aside"
    aside.mkdir()
    gone = list(begun.state.glob(lost)) if lost else [begun.state]
    assert gone, f"there is no {lost}"
    for path in gone:
        shutil.move(path, aside / path.name)
    text = begun.failure(join_of(begun))
    begun.says(text, kind, fragment, str(begun.state), "start over")
    if not lost and begun.state.exists():
        shutil.rmtree(begun.state)
    for path in gone:
        shutil.move(aside / path.name, path)
    goes_on(begun, f"after {lost or 'the state'} was gone for a while")


@pytest.mark.parametrize(
    ("pattern", "position", "fragment"),
    [
        ("v*", 0.0, "the manifest"),
        ("v*", 0.5, "the manifest"),
        ("*-log.arrows", 0.9, "does not have the checksum it was written with"),
        ("latest", 0.0, "does not hold a version number"),
    ],
)
def test_state_when_damaged_then_names_the_file_and_goes_on_once_it_is_whole(
    begun: Any, pattern: str, position: float, fragment: str
) -> None:
    path = newest(begun.state, pattern)
    before = begun.flip(path, position)
    text = begun.failure(join_of(begun))
    begun.says(text, "StateCorruptError", str(path), fragment)
    path.write_bytes(before)
    goes_on(begun, f"after {path.name} was damaged for a while")


def test_identity_when_damaged_then_names_the_file_and_goes_on_once_it_is_whole(
    begun: Any,
) -> None:
    path = begun.state / "identity.json"
    for position, kind in ((0.0, errors.StateCorruptError), (0.3, errors.StateError)):
        before = begun.flip(path, position)
        with pytest.raises(kind, match=re.escape(str(begun.state))):
            join_of(begun)
        path.write_bytes(before)
    goes_on(begun, "after identity.json was damaged for a while")


def test_outbox_when_damaged_then_replay_names_the_file_and_goes_on_once_it_is_whole(
    bench: Any,
) -> None:
    """A replay sends the outbox again, so it matters only then."""
    for side in ("left", "right"):
        bench.keyed(side, np.arange(300) % 60, files=1)
    bench.crash(join_of(bench, memory=None))
    path = newest(bench.state, "*-out.arrows")
    before = bench.flip(path, 0.6)
    text = bench.failure(join_of(bench, memory=None))
    bench.says(text, "StateCorruptError", "the results in", str(path), "Restore")
    path.unlink()
    text = bench.failure(join_of(bench, memory=None))
    bench.says(text, "StateMissingError", str(path), "is gone, but its batch is being replayed")
    path.write_bytes(before)
    bench.run(join_of(bench, memory=None))
    bench.check("after the outbox was damaged for a while")


def test_state_when_a_version_is_gone_that_is_asked_for_again_then_says_so(begun: Any) -> None:
    """Without it the batch would be computed anew, and perhaps not as the sink got it."""
    begun.keyed("left", np.arange(40) % 9, files=1)
    last = begun.crash(join_of(begun))
    path = newest(begun.state, "v*")
    before = path.read_bytes()
    path.unlink()
    text = begun.failure(join_of(begun))
    begun.says(text, "StateMissingError", str(path), f"asks for batch {last} again")
    path.write_bytes(before)
    goes_on(begun, "after a version was gone for a while")


def test_state_when_its_path_is_a_file_then_says_so(bench: Any) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(10), files=1)
    bench.state.write_text("a file")
    text = bench.failure(join_of(bench))
    bench.says(text, "StorageError", str(bench.state), "check that the directory exists")
    assert bench.state.read_text() == "a file"
    bench.state.unlink()
    bench.run(join_of(bench))
    bench.check("after the file was gone")


def test_disk_when_full_then_says_so_and_goes_on_once_there_is_room(
    bench: Any, small_disk: Path
) -> None:
    rng = np.random.default_rng(17)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 300, 2400), files=4)
    joined = join_of(bench, state=small_disk / "state")
    for _ in range(2):  # trying again does not make it worse
        text = bench.failure(joined)
        bench.says(text, "StorageError", str(small_disk), "No space left on device", "make room")
        bench.says(text, "the last committed version is intact")
    remount = ["mount", "-o", "remount,size=64m", str(small_disk)]
    subprocess.run(remount, check=True)
    bench.run(join_of(bench, state=small_disk / "state"))
    assert dovetail.progress(small_disk / "state").spilled_bytes > 0
    bench.check("after the disk was full")


def test_plan_when_run_outside_a_query_then_says_how_to_start_it(bench: Any) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(10), files=1)
    with pytest.raises(Exception, match="writeStream"):
        bench.join().collect()


# -- the machine ----------------------------------------------------------------------------


def without_java() -> dict[str, str]:
    """The environment, less every way to a Java."""
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    folders = kept.get("PATH", "").split(os.pathsep)
    kept["PATH"] = os.pathsep.join(f for f in folders if not (Path(f) / "java").exists())
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path)}


LIBRARY = """
from dovetail.errors import EnvironmentProblemError
from dovetail.spark.session import local_session
try:
    local_session("x")
except EnvironmentProblemError as error:
    raise SystemExit(f"error: {error}")
"""


@pytest.mark.parametrize(
    "command", [["-c", LIBRARY], ["-m", "dovetail.cli", "demo"]], ids=["library", "command"]
)
def test_session_when_java_is_missing_then_says_so_in_one_message(
    command: list[str], tmp_path: Path
) -> None:
    environment = without_java()
    if shutil.which("bash", path=environment["PATH"]) is None:
        # Java lives where everything else does: a folder with all but Java in it stands in
        stand_in = tmp_path / "bin"
        stand_in.mkdir()
        for folder in os.environ["PATH"].split(os.pathsep):
            for tool in Path(folder).glob("*"):
                if tool.name != "java" and not (stand_in / tool.name).exists():
                    (stand_in / tool.name).symlink_to(tool)
        environment["PATH"] = str(stand_in)
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode not in (0, None), done
    said = " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in said, said
    assert "Java" in said, said
    assert "dovetail doctor" in said or "Install Java 17" in said, said
