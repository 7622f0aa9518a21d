"""Files of sites and queries: what they say, and complaints that say where and what."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.cli.site.file import read_query, read_site
from dovetail.cli.site.inputs import feed, first_time, statistics
from dovetail.cli.site.plan import choose_plan, deployment
from dovetail.errors import ArgumentError, JobFileError, SiteAccessError
from dovetail.multisite.costs import CostModel
from dovetail.multisite.live.deployment import Deployment, prices_of
from dovetail.multisite.plan import Algorithm
from dovetail.multisite.planner import algorithm_10, greedy, joint
from dovetail.multisite.tree_costs import cheapest_tree
from dovetail.multisite.windows import CountWindow, TimeWindow
from support.certificates import make_certificates

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
QUERY = """
tau = "1 second"
delta = "200 ms"
clock = "rows"
on = [["r1.dest", "r2.dest"]]
[streams.r1]
site = "paris"
columns = { ts = "timestamp[ms]", dest = "int64" }
window = "1 minute"
input = { rate = 100, keys = { dest = 20 }, seed = 3 }
[streams.r2]
columns = { ts = "timestamp[ms]", dest = "int64", text = "string", on = "bool" }
window_rows = 7
input = { rate = 10, keys = { dest = 50 } }
[[links]]
from = "paris"
to = "r2"
latency = "50 ms"
bandwidth = "1 MB"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "packets.toml"
    path.write_text(text)
    return path


def test_query_file_when_read_then_says_what_stands_there(tmp_path: Path) -> None:
    file = read_query(written(tmp_path, QUERY))
    assert (file.name, file.clock, file.unit, file.heartbeats) == ("packets", "rows", "ms", True)
    assert (file.query.tau, file.query.delta, file.query.lateness) == (1000, 200, 0)
    assert [stream.window for stream in file.query.streams] == [TimeWindow(60_000), CountWindow(7)]
    assert file.hosts == ("paris", "r2")
    assert file.shapes[("paris", "r2")].latency == pytest.approx(0.05)
    assert file.shapes[("paris", "r2")].bandwidth == 1 << 20
    known = statistics(file)
    assert known.streams["r1"].rate == pytest.approx(0.1)
    assert known.distinct("r2.dest") == 50
    plan = choose_plan(file)
    handed = deployment(file, plan, {"paris": "grpc://127.0.0.1:1", "r2": "grpc://127.0.0.1:2"})
    assert handed.first_interval == 1
    assert handed.plan is plan


def test_query_file_when_it_names_a_planner_then_that_one_chooses(tmp_path: Path) -> None:
    for name, planner in (("algorithm-10", algorithm_10), ("greedy", greedy), ("joint", joint)):
        text = QUERY.replace("[[links]]", f'[plan]\nplanner = "{name}"\n[[links]]')
        file = read_query(written(tmp_path, text))
        prices = prices_of(file.shapes, file.second)
        assert choose_plan(file) == planner(CostModel(file.query, statistics(file), prices))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('tau = "1 second"', "", "tau is missing"),
        ('tau = "1 second"', 'tau = "soon"', "tau has to be a span of time"),
        ('tau = "1 second"', 'tau = "500 us"', "no whole number of the time's unit"),
        ('clock = "rows"', 'clock = "sun"', "clock is 'sun'"),
        ('"r2.dest"', '"r2.des"', "names 'r2.des', which no stream has"),
        ('dest = "int64" }', 'dest = "int65" }', "columns.dest is 'int65', which is no Arrow type"),
        ('dest = "int64", text', 'dest = "int32", text', "join columns must have the same type"),
        ('window = "1 minute"', "", "window or window_rows has to be there"),
        ("window_rows = 7", 'window_rows = 7\nwindow = "1 s"', "window or window_rows"),
        ("rate = 100,", "rate = 0,", "rate is a number"),
        ('site = "paris"', 'sites = "paris"', "did you mean 'site'"),
        ('bandwidth = "1 MB"', 'bandwidth = "wide"', "bandwidth cannot be: not a size"),
        ("[[links]]", '[plan]\nplanner = "fixed"\n[[links]]', "goes with planner"),
        (
            "[[links]]",
            '[plan]\nplanner = "fixed"\nsequences = { r1 = ["SM-S1"] }\n[[links]]',
            "a step is an algorithm and a stream",
        ),
        (
            "[[links]]",
            '[plan]\nplanner = "fixed"\nsequences = { r1 = ["SM-S1 r3"] }\n[[links]]',
            "joins 'r3', which is joined or unknown",
        ),
        (
            "[[links]]",
            '[plan]\nplanner = "fixed"\nsequences = { r1 = 1 }\n[[links]]',
            "plan.sequences.r1 is a number (1), but has to be a list of texts",
        ),
        ("[[links]]", '[plan]\nplanner = "tree"\n[[links]]', "'r2' has a window by count"),
        (
            "[[links]]",
            '[plan]\nplanner = "fixed"\ntree = ["r1", ["r2", "SP-S"]]\n[[links]]',
            "has to be the first stream and the joins",
        ),
        (
            "[[links]]",
            '[plan]\nplanner = "fixed"\ntree = ["r1", ["r2", "SP-S", "SM-S9"]]\n[[links]]',
            "has to be the first stream and the joins",
        ),
        ("[[links]]", '[plan]\ntree = ["r1", ["r2", "SP-S", "SP-D"]]\n[[links]]', "goes with pla"),
        ("[[links]]", "[statistics.r9]\nrate = 1\n[[links]]", "statistics.r9 is of no stream"),
        ("[[links]]", "[statistics.r1]\nrate = 1\n[[links]]", "all three"),
        ('{ ts = "timestamp[ms]", dest = "int64" }', '{ dest = "int64" }', "names 'ts'"),
        (
            '{ ts = "timestamp[ms]", dest = "int64" }',
            '{ ts = "timestamp[us]", dest = "int64" }',
            "unit of the time columns differs",
        ),
    ],
)
def test_query_file_when_something_is_wrong_then_names_file_key_and_remedy(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    assert old in QUERY
    path = written(tmp_path, QUERY.replace(old, new, 1))
    with pytest.raises(JobFileError) as caught:
        read_query(path)
    assert said in str(caught.value)
    assert "packets.toml" in str(caught.value)


TREE = QUERY.replace("window_rows = 7", 'window = "7 seconds"')


def test_query_file_when_it_asks_for_a_tree_then_one_is_chosen_or_taken(tmp_path: Path) -> None:
    for said in ('planner = "tree"', 'planner = "fixed"\ntree = ["r2", ["r1", "SM-S1", "SP-D"]]'):
        file = read_query(
            written(tmp_path, TREE.replace("[[links]]", f"[plan]\n{said}\n[[links]]"))
        )
        plan = choose_plan(file)
        prices = prices_of(file.shapes, file.second)
        if file.plan.fixed is None:
            assert plan == cheapest_tree(file.query, statistics(file), prices)
        else:
            assert repr(plan) == "r2 + SM-S1 r1 SP-D"
        handed = deployment(file, plan, {"paris": "grpc://127.0.0.1:1", "r2": "grpc://127.0.0.1:2"})
        again = Deployment.from_json(json.loads(json.dumps(handed.to_json())))
        assert (again.plan, again.digest) == (plan, handed.digest)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ('planner = "tree"\nreplan_every = 5', "plan.replan_every has to be 0 for a tree"),
        (
            'planner = "fixed"\ntree = ["r1", ["r2", "SP-S", "SP-D"]]\nreplan_every = 5',
            "plan.replan_every has to be 0 for a tree",
        ),
        ('planner = "tree"\nalgorithms = ["SP-D", "SM-D1"]', "plan.algorithms has to have one"),
        (
            'planner = "fixed"\ntree = ["r1", ["r2", "SP-S", "SM-S1"]]',
            "plan.tree cannot be: the joins of 'r2' with the prefix leave results at two sites",
        ),
    ],
)
def test_query_file_when_no_tree_can_do_that_then_refuses_before_anything_runs(
    plan: str, said: str, tmp_path: Path
) -> None:
    path = written(tmp_path, TREE.replace("[[links]]", f"[plan]\n{plan}\n[[links]]"))
    with pytest.raises(JobFileError) as caught:
        read_query(path)
    assert said in str(caught.value)
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["site", "plan", str(path)])
    assert shown.exit_code != 0


def test_plan_when_a_tree_is_asked_for_then_prints_its_levels(tmp_path: Path) -> None:
    text = (EXAMPLES / "sites.toml").read_text().replace('planner = "joint"', 'planner = "tree"')
    path = written(tmp_path, text)
    shown = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["site", "plan", str(path)])
    assert shown.exit_code == 0, shown.output
    names = "north|west|south"
    assert re.search(rf"({names})\+({names}) +\w+ +({names}) by S[PM]", shown.output), shown.output
    assert "messages a second" in shown.output
    ahead = written(tmp_path, text.replace("# ahead = 32", "ahead = 1"))
    with pytest.raises(ArgumentError, match="ahead=1: an interval is over when"):
        choose_plan(read_query(ahead))


def test_plan_when_nothing_is_known_of_a_stream_then_asks_for_it(tmp_path: Path) -> None:
    text = QUERY.replace("input = { rate = 10, keys = { dest = 50 } }", "")
    file = read_query(written(tmp_path, text))
    with pytest.raises(JobFileError, match=r"\[statistics\.r2\] with rate, row_bytes and distinct"):
        choose_plan(file)
    with pytest.raises(JobFileError, match="start is missing"):
        first_time(file)
    with pytest.raises(JobFileError, match=r"no \[sites\.paris\] with an address"):
        deployment(file, choose_plan(read_query(written(tmp_path, QUERY))), {})


def test_input_when_made_up_then_has_rows_of_every_interval(tmp_path: Path) -> None:
    file = read_query(written(tmp_path, QUERY))
    for name in file.query.names:
        rows = feed(file, name, 5, 3)
        again = feed(file, name, 5, 3)
        assert rows is not None
        assert again is not None
        assert rows.last_interval == 7
        batches = list(rows.rows)
        assert [b.to_pydict() for b in batches] == [b.to_pydict() for b in again.rows]
        assert all(batch.schema == file.query.stream(name).schema for batch in batches)
        for interval, batch in enumerate(batches, 5):
            times = np.asarray(batch.column("ts").cast(pa.int64()))
            assert (file.query.interval_of(times) == interval).all()
    assert sum(batch.num_rows for batch in batches) > 10


def test_input_when_a_file_then_is_sorted_and_cut(tmp_path: Path) -> None:
    times = pa.array([2500, 100, 1200, 2400]).cast(pa.timestamp("ms"))
    table = pa.table({"dest": [1, 2, 3, 4], "ts": times, "more": ["x"] * 4})
    pq.write_table(table, tmp_path / "rows.parquet")
    text = QUERY.replace(
        "input = { rate = 100, keys = { dest = 20 }, seed = 3 }",
        'input = { kind = "file", path = "rows.parquet" }',
    )
    file = read_query(written(tmp_path, text))
    rows = feed(file, "r1", 1, None)
    assert rows is not None
    assert [batch.column("dest").to_pylist() for batch in rows.rows] == [[2], [3], [4, 1]]
    assert first_time(file) == 100
    assert statistics(file).distinct("r1.dest") == 4
    by_clock = read_query(written(tmp_path, text.replace('clock = "rows"', 'clock = "wall"')))
    with pytest.raises(JobFileError, match="rows of a file have times of their own"):
        feed(by_clock, "r1", 1, None)


def test_site_file_when_read_then_says_what_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'name = "paris"\nlisten = "grpc://127.0.0.1:0"\ndata = "state"\ntoken_file = "token"\n'
    path = tmp_path / "site.toml"
    path.write_text(text + '[limits]\nput_bytes = "2 KB"\ndurable = false\n')
    with pytest.raises(SiteAccessError, match="cannot read the token file"):
        read_site(path)
    (tmp_path / "token").write_text("0123456789abcdef")
    file = read_site(path)
    assert (file.name, file.data, file.limits.put_bytes) == ("paris", tmp_path / "state", 2048)
    assert not file.limits.durable
    assert file.access.certificate is None
    assert not file.verify_clients
    for more, said in (
        ("[tls]\nkey = 'k'\n", "tls.certificate is missing"),
        ("[limits]\nput_bytes = 0\n", "put_bytes has to be 1 byte or more"),
        ("data2 = 'x'\n", "did you mean 'data'"),
    ):
        path.write_text(text + more)
        with pytest.raises(JobFileError, match=said):
            read_site(path)


def test_examples_when_read_then_are_valid(tmp_path: Path) -> None:
    file = read_query(EXAMPLES / "sites.toml")
    assert file.hosts == ("oslo", "paris", "rome")
    assert {a for steps in choose_plan(file).sequences.values() for a in steps}
    site: Any = (EXAMPLES / "site.toml").read_text()
    (tmp_path / "site.toml").write_text(site)
    (tmp_path / "token").write_text("0123456789abcdef")
    make_certificates(tmp_path, EXAMPLES / "site.toml", "paris.example")
    paris = read_site(tmp_path / "site.toml")
    assert paris.name == "paris"
    assert paris.verify_clients
    assert paris.access.certificate is not None


@pytest.mark.parametrize("command", ["serve", "plan", "run", "status", "stop"])
def test_help_when_asked_of_a_site_command_then_shows_examples(command: str) -> None:
    result = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(
        app, ["site", command, "--help"]
    )
    assert result.exit_code == 0
    assert f"dovetail site {command}" in result.output


def test_plan_when_asked_then_prints_sequences_and_bytes() -> None:
    runner = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"})
    result = runner.invoke(app, ["site", "plan", str(EXAMPLES / "sites.toml")])
    assert result.exit_code == 0, result.output
    assert "Expected:" in result.output
    assert any(algorithm in result.output for algorithm in Algorithm)
    result = runner.invoke(app, ["site", "plan", str(EXAMPLES / "nothing.toml")])
    assert result.exit_code == 2
    assert "there is no file" in result.output
