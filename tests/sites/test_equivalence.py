"""Sites as processes emit what one place would (Appendix A), over Flight."""

import importlib.util
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.cli.site.file import read_query
from dovetail.multisite.live.client import SiteClient
from dovetail.multisite.live.deployment import Deployment, Shape
from dovetail.sites import PAPER, Algorithm, Plan, Query, Step, Stream, TimeWindow
from support.sites import counted, window_join


@pytest.mark.parametrize("algorithm", PAPER)
def test_sites_when_all_steps_are_of_one_algorithm_then_emit_what_one_place_would(
    algorithm, fleet, run
) -> None:
    running = run(fleet, PAPER.index(algorithm), (algorithm,))
    running.feed(1, running.intervals)
    running.drain()
    assert running.check() > 0


def test_sites_when_algorithms_are_mixed_then_emit_what_one_place_would(fleet, run) -> None:
    results = 0
    for seed in range(100, 112):
        running = run(fleet, seed, tuple(Algorithm), intervals=6)
        running.feed(1, running.intervals)
        running.drain()
        results += running.check()
    assert results > 1000


def test_sites_when_plans_are_chosen_anew_then_emit_what_one_place_would(fleet, run) -> None:
    links = {(a, b): Shape(0.005, 1e8) for a in fleet.hosts for b in fleet.hosts if a != b}
    running = run(
        fleet, 21, (Algorithm.SM_D2,), intervals=25, replan_every=3,
        shapes=links,
    )  # fmt: skip
    running.feed(1, running.intervals)
    running.drain()
    assert running.check() > 0
    changes = running.clients[running.deployment.hosts[0]].status(running.name).changes
    assert changes, "no plan was changed"


def test_put_when_repeated_or_sent_in_parts_then_counts_once(fleet, run) -> None:
    running = run(fleet, 31, intervals=6)
    query = running.deployment.query
    for interval in range(1, 7):
        for name in query.names:
            rows = running.rows_of(name, interval)
            half = rows.num_rows // 2
            client = running.client_of(name)
            for part, piece in enumerate([rows.slice(half), rows.slice(0, half)]):
                acks = [
                    client.put(
                        running.name, name, piece, producer="p", batch=interval, part=part
                    ).duplicate
                    for _ in range(2)
                ]
                assert acks == [False, True]
            client.advance(running.name, name, query.boundary(interval))
    running.drain()
    assert running.check() > 0


def test_results_when_read_again_or_trimmed_then_keep_their_numbers(fleet, run) -> None:
    running = run(fleet, 2, intervals=10, rows=6)
    running.feed(1, 10)
    running.drain()
    host, client = max(
        running.clients.items(), key=lambda item: item[1].result_range(running.name)[1]
    )
    first, last = client.result_range(running.name)
    assert first == 1
    assert last > 3
    whole = list(client.results(running.name))
    assert [result.seq for result in whole] == list(range(1, last + 1))
    part = list(client.results(running.name, after=1, through=3))
    assert [(r.seq, r.rows.to_pydict()) for r in part] == [
        (r.seq, r.rows.to_pydict()) for r in whole[1:3]
    ], host
    client.trim(running.name, 2)
    client.trim(running.name, 2)
    assert client.result_range(running.name) == (3, last)
    assert [r.seq for r in client.results(running.name, after=2)] == list(range(3, last + 1))
    with pytest.raises(Exception, match="have been given up"):
        list(client.results(running.name, after=0))


def test_run_when_local_then_writes_what_one_place_would_find(tmp_path) -> None:
    rng = np.random.default_rng(3)
    streams = {}
    for name in ("A", "B"):
        columns = {"ts": np.sort(rng.integers(0, 5000, 200)), "k": rng.integers(0, 40, 200)}
        streams[name] = pa.record_batch(columns)
        pq.write_table(pa.Table.from_batches([streams[name]]), tmp_path / f"{name}.parquet")
    stream = 'columns = { ts = "int64", k = "int64" }\nwindow = "2 seconds"\n'
    (tmp_path / "query.toml").write_text(
        'tau = "1 second"\nclock = "rows"\non = [["A.k", "B.k"]]\n'
        f'[streams.A]\n{stream}input = {{ kind = "file", path = "A.parquet" }}\n'
        f'[streams.B]\n{stream}input = {{ kind = "file", path = "B.parquet" }}\n'
    )
    out = tmp_path / "found.parquet"
    command = ["site", "run", "--local", str(tmp_path / "query.toml"), "--out", str(out)]
    result = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"}).invoke(app, command)
    assert result.exit_code == 0, result.output
    query = read_query(tmp_path / "query.toml").query
    expected = sum(window_join(query, streams, 5).values(), start=Counter())
    assert counted(pq.read_table(out)) == expected
    assert f"400 rows in, {expected.total():,} results" in result.output
    assert "shipped in" in result.output


def test_routers_when_run_then_every_plan_finds_the_same(tmp_path, monkeypatch, capsys) -> None:
    path = Path(__file__).resolve().parents[2] / "examples" / "routers.py"
    spec = importlib.util.spec_from_file_location("routers", path)
    routers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(routers)
    monkeypatch.setattr(routers, "INTERVALS", 4)
    monkeypatch.setattr(routers, "PICTURE", tmp_path / "routers.png")
    routers.main()
    said = capsys.readouterr().out
    assert "planner's choice" in said
    assert "results with each of them" in said
    assert (tmp_path / "routers.png").stat().st_size > 10_000


def since(start: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with times as numbers from a start on."""
    columns = [
        pc.subtract(column.cast(pa.int64()), start)
        if pa.types.is_timestamp(column.type)
        else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)


def test_sites_when_the_wall_clock_ends_intervals_then_emit_what_one_place_would(fleet) -> None:
    schema = pa.schema([("ts", pa.timestamp("us")), ("k", pa.int32())])
    tau, intervals = 100_000, 8
    first = time.time_ns() // 1000 // tau + 20  # time enough to hand the query out
    streams = tuple(
        Stream(n, schema, TimeWindow(3 * tau), site=f"h{i}") for i, n in enumerate("XY")
    )
    query = Query(streams, (("X.k", "Y.k"),), tau, 0, lateness=20_000)
    plan = Plan(query, {"X": [Step("Y", Algorithm.SM_S2)], "Y": [Step("X", Algorithm.SM_D2)]})
    addresses = {stream.site: fleet.address(stream.site) for stream in streams}
    deployment = Deployment(
        "by-the-clock", plan, addresses, clock="wall", unit="us", first_interval=first
    )
    clients = {s.name: SiteClient(addresses[s.site], fleet.access) for s in streams}
    rng = np.random.default_rng(1)
    rows = {}
    for client in clients.values():
        client.start(deployment)
    for name, client in clients.items():
        times = np.sort(rng.integers(0, tau * intervals, 60)) + (first - 1) * tau
        columns = [pa.array(times).cast(pa.timestamp("us")), pa.array(rng.integers(0, 9, 60))]
        rows[name] = pa.table(columns, ["ts", "k"]).cast(schema).to_batches()[0]
        ack = client.put(deployment.name, name, rows[name], producer="test", batch=0)
        assert ack.late == 0
    last = first + intervals - 1
    while (
        min(
            client.status(deployment.name).streams[name].settled for name, client in clients.items()
        )
        < last
    ):
        time.sleep(0.05)
    found = [r.rows for client in clients.values() for r in client.results(deployment.name)]
    start = query.boundary(first - 1)
    answer = window_join(query, {n: since(start, batch) for n, batch in rows.items()}, intervals)
    expected = sum(answer.values(), start=Counter())
    assert counted(pa.Table.from_batches([since(start, batch) for batch in found])) == expected
    assert expected.total() > 0
    for client in clients.values():
        client.stop(deployment.name, forget=True)
        client.close()
