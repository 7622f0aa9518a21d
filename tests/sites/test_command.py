"""`dovetail site` with sites that are served: run, status, stop; and the benchmark's sites."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from dovetail.multisite.live.local import LocalSites
from dovetail_bench.semi.served import RATE, WINDOW, Case, choose, local_sites, serving


def command(*words: object) -> Result:
    runner = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"})
    return runner.invoke(app, ["site", *map(str, words)])


def written(folder: Path, fleet: LocalSites, **addresses: str) -> Path:
    """A query over two sites of the fleet, with rows from files."""
    found = {host: fleet.address(host) for host in ("h0", "h1")} | addresses
    text = 'name = "served"\ntau = "1 second"\nclock = "rows"\non = [["A.k", "B.k"]]\n'
    text += f'token_file = "{fleet.directory / "token"}"\n'
    for seed, (stream, host) in enumerate((("A", "h0"), ("B", "h1"))):
        rng = np.random.default_rng(seed)
        rows = {"ts": np.sort(rng.integers(0, 4000, 100)), "k": rng.integers(0, 20, 100)}
        pq.write_table(pa.table(rows), folder / f"{stream}.parquet")
        text += f'[sites.{host}]\naddress = "{found[host]}"\n[streams.{stream}]\nsite = "{host}"\n'
        text += 'columns = { ts = "int64", k = "int64" }\nwindow = "2 seconds"\n'
        text += f'input = {{ kind = "file", path = "{stream}.parquet" }}\n'
    (folder / "query.toml").write_text(text)
    return folder / "query.toml"


def test_command_when_sites_are_served_then_runs_shows_and_stops(tmp_path, fleet) -> None:
    query = written(tmp_path, fleet)
    done = command("run", query)
    assert done.exit_code == 0, done.output
    assert "200 rows in" in done.output
    again = command("run", query)  # the same query: goes on, and its rows are there already
    assert again.exit_code == 0, again.output
    assert "200 rows in" in again.output
    shown = command("status", query)
    assert shown.exit_code == 0, shown.output
    assert all(word in shown.output for word in ("h0", "h1", "100", "B"))
    # one site cannot be reached: of the other all is said, and it is stopped
    broken = written(tmp_path, fleet, h1="grpc://127.0.0.1:1")
    for name in ("status", "stop"):
        partly = command(name, broken)
        assert partly.exit_code == 2
        assert "grpc://127.0.0.1:1 cannot be reached" in partly.output
        assert "h0" in partly.output
    stopped = command("stop", written(tmp_path, fleet), "--forget")
    assert "served is stopped at h1" in stopped.output
    gone = command("status", query)
    assert gone.exit_code == 2
    assert "does not run a query 'served'" in gone.output


def brute(case: Case) -> int:
    left, right = (
        (np.asarray(table["ts"].cast(pa.int64())), np.asarray(table["key"]))
        for table in case.tables.values()
    )
    near = np.abs(left[0][:, None] - right[0][None, :]) <= WINDOW
    return int(np.count_nonzero(near & (left[1][:, None] == right[1][None, :])))


def test_served_when_few_rows_match_then_sends_little_and_finds_all(tmp_path) -> None:
    small = Case(2000, 1.0, seed=1)
    assert small.pairs == brute(small) > 0
    case = Case(3 * RATE, 0.1, seed=2)
    with local_sites(tmp_path) as sites, serving(sites, choose(case)) as served:
        served.put_all(case)
        served.finish(case)
        assert served.read() == case.pairs > 0
        sent = served.facts()["bytes_sent"]
    assert case.least_bytes < sent < 0.5 * min(case.nbytes.values())


def test_local_sites_when_folders_are_for_the_group_by_default_then_start_all_the_same(
    tmp_path: Path,
) -> None:
    old = os.umask(0o002)
    try:
        sites = LocalSites(tmp_path / "sites", ("a",), {"durable": False})
        sites.start("a")
    finally:
        os.umask(old)
    assert sites.address("a")
    sites.stop()
    assert (sites.directory / "a").stat().st_mode & 0o077 == 0
