"""Tree plans at sites that are processes, over Flight: what one place would emit, kills or not."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from dovetail.cli.site.file import read_query
from dovetail.multisite.live.deployment import Shape
from dovetail.sites import TreePlan
from support.sites import counted, window_join

THREE, FOUR = 1, 2  # seeds of queries of so many streams
STREAM = 'columns = { ts = "int64", k = "int64" }\nwindow = "2 seconds"\n'
HEAD = 'tau = "1 second"\nclock = "rows"\non = [["A.k", "B.k"], ["B.k", "C.k"]]\n'


def prefixes(running: Any) -> set[str]:
    """What the levels of the tree have joined, and handed on to the next."""
    streams = [c.status(running.name).streams.items() for c in running.clients.values()]
    return {n for found in streams for n, stream in found if "+" in n and stream.rows}


@pytest.mark.parametrize("seed", [THREE, FOUR])
def test_tree_when_sites_run_it_then_emits_what_one_place_would(seed: int, fleet, run) -> None:
    shapes = {(a, b): Shape(0.01, 1e6) for a in fleet.hosts for b in fleet.hosts if a != b}
    running = run(fleet, seed, tree=True, shapes=shapes, ahead=2)
    running.feed(1, running.intervals)
    running.drain()
    assert running.check() > 0
    assert len(prefixes(running)) == len(running.deployment.plan.levels) - 1 > 0
    client = running.clients[running.deployment.hosts[0]]
    status = client.status(running.name)
    assert status.plan_of(running.deployment.query) == running.deployment.plan
    assert client.describe(running.name).deployment.digest == running.deployment.digest


def test_tree_when_sites_are_killed_then_results_are_exact(own_fleet, run) -> None:
    running = run(own_fleet, FOUR, intervals=20, rows=8, tree=True)
    assert isinstance(running.deployment.plan, TreePlan)
    before: dict[Any, Any] = {}
    for start, kill_at, host in ((1, 8, "h0"), (10, 15, "h1")):
        running.feed(start, kill_at)
        before |= running.results()
        own_fleet.kill(host)  # SIGKILL; the other goes on meanwhile
        running.feed(kill_at + 1, kill_at + 1, without=host)
        running.feed(kill_at + 1, kill_at + 1)
    running.feed(17, 20)
    running.drain()
    assert running.check() > 1000
    after = running.results()
    assert before, "nothing had come out before the kills"
    assert {key: after[key][1].to_pydict() for key in before} == {
        key: rows.to_pydict() for key, (_, rows) in before.items()
    }
    assert prefixes(running)
    folders = [own_fleet.directory / host / running.name for host in own_fleet.hosts]
    assert any(list(folder.glob("snapshot-*.bin")) for folder in folders), "no snapshot was made"


def command(*words: object) -> Result:
    runner = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"})
    return runner.invoke(app, ["site", *map(str, words)])


def test_run_when_the_planner_is_tree_then_writes_what_one_place_would_find(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    streams = {}
    text = HEAD + '[plan]\nplanner = "tree"\n'
    for name in "ABC":
        columns = {"ts": np.sort(rng.integers(0, 5000, 150)), "k": rng.integers(0, 40, 150)}
        streams[name] = pa.record_batch(columns)
        pq.write_table(pa.Table.from_batches([streams[name]]), tmp_path / f"{name}.parquet")
        text += f"[streams.{name}]\n{STREAM}"
        text += f'input = {{ kind = "file", path = "{name}.parquet" }}\n'
    (tmp_path / "query.toml").write_text(text)
    out = tmp_path / "found.parquet"
    done = command("run", "--local", tmp_path / "query.toml", "--out", out)
    assert done.exit_code == 0, done.output
    query = read_query(tmp_path / "query.toml").query
    expected = sum(window_join(query, streams, 5).values(), start=Counter())
    assert counted(pq.read_table(out)) == expected
    assert f"450 rows in, {expected.total():,} results" in done.output
    assert re.search(r"^ *[ABC]\+[ABC] +[ABC] +[ABC] by S", done.output, re.MULTILINE), done.output
