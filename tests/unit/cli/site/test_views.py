"""What a query over several sites looks like: a loss is never silent."""

from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.cli.site.views import complaint, left_out, sample_table
from dovetail.multisite.live.client import SiteClient, Status, StreamStatus

QUERY = """
tau = "1 second"
token_file = "token"
on = [["a.k", "b.k"]]
sites.x.address = "grpc://127.0.0.1:1"
streams.a = { site = "x", columns = { ts = "int64", k = "int64" }, window = "1 second" }
streams.b = { site = "x", columns = { ts = "int64", k = "int64" }, window = "1 second" }
"""


def status(late_messages: int, late: int = 0) -> Status:
    streams = {
        name: StreamStatus(
            ticked=3, settled=2, rows=10, late=late, late_messages=count, window_rows=4,
            kept_bytes=100, delta=5,
        )
        for name, count in (("a", late_messages), ("b", 0))
    }  # fmt: skip
    return Status(
        host="x", error=None, streams=streams, links={}, results=(1, 0), result_rows=0,
        measured_delta=0, plan="{}", changes=[], journal_bytes=0, snapshots=0,
    )  # fmt: skip


def test_complaint_when_messages_came_too_late_then_says_where_and_what_to_do() -> None:
    assert complaint({"x": status(0)}) is None
    said = complaint({"x": status(3), "y": status(0)})
    assert said is not None
    assert "3 at 'x'" in said
    assert "'y'" not in said
    assert all(word in said for word in ("may be missing", "delta", "heartbeats"))


def test_left_out_when_rows_were_late_then_says_of_which_streams() -> None:
    assert left_out({"x": status(0)}) is None
    assert "(7 of a, 7 of b)" in str(left_out({"x": status(0, late=7)}))


@pytest.mark.parametrize("late", [0, 3])
def test_status_when_messages_came_too_late_then_fails_after_the_tables(
    late: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "query.toml").write_text(QUERY)
    (tmp_path / "token").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "token").chmod(0o600)
    monkeypatch.setattr(SiteClient, "status", lambda *_: status(late))
    runner = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"})
    done = runner.invoke(app, ["site", "status", str(tmp_path / "query.toml")])
    assert "stream" in done.output
    assert done.exit_code == (2 if late else 0), done.output
    assert ("may be missing" in done.output) == bool(late)


NAMES = [f"{s}.{c}" for s in ("north", "west", "south") for c in ("ts", "dest", "bytes")]


@pytest.mark.parametrize(("width", "shown"), [(200, 5), (100, 2), (60, 1)])
def test_sample_when_the_terminal_is_narrow_then_names_and_values_are_whole(
    width: int, shown: int
) -> None:
    rows = pa.record_batch(
        {
            name: pa.array([f"2026-01-31 12:00:00.00000{n}" for n in range(5)])
            if name.endswith("ts")
            else pa.array([None, *range(100_001, 100_005)])
            for name in NAMES
        }
    )
    console = Console(width=width, no_color=True, record=True)
    with console.capture() as said:
        console.print(sample_table(rows, console.width))
    words = said.get().split()
    assert [word for word in words if "." in word and ":" not in word] == NAMES
    assert words.count("12:00:00.000000") == 3
    assert words.count("100001") == (6 if shown > 1 else 0)
    assert words.count(f"12:00:00.00000{shown - 1}") == 3
    assert "…" not in said.get()
    assert max(map(len, said.get().splitlines())) <= width
