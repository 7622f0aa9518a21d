"""`pace = "delta"`: sites that go by the time a message may take, as in the paper, over Flight."""

import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from dovetail.multisite.live.client import SiteClient
from dovetail.multisite.live.deployment import Deployment, Shape
from dovetail.multisite.live.local import LocalSites
from dovetail.sites import PAPER, Plan, Query, Step, Stream, TimeWindow
from support.sites import counted, window_join
from support.waiting import until_true

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64())])
TAU, DELTA, INTERVALS = 200, 1500, 8  # ms, and how many
LATENCY = 0.6  # seconds; what is missing to DELTA is for a busy machine


def all_algorithms(query: Query) -> Plan:
    """Every step of three sequences by another algorithm of the paper."""
    algorithms = iter(PAPER)
    ways = {"X": "YZ", "Y": "ZX", "Z": "XY"}
    return Plan(query, {h: [Step(n, next(algorithms)) for n in way] for h, way in ways.items()})


def test_sites_when_they_go_by_delta_then_emit_what_one_place_would(fleet: LocalSites) -> None:
    streams = tuple(
        Stream(name, SCHEMA, TimeWindow(3 * TAU), site=host)
        for name, host in zip("XYZ", fleet.hosts, strict=True)
    )
    on = (("X.k", "Y.k"), ("Y.k", "Z.k"), ("X.k", "Z.k"))
    query = Query(streams, on, TAU, DELTA)
    plan = all_algorithms(query)
    assert {step.algorithm for step in plan.steps()} == set(PAPER)
    shapes = {(a, b): Shape(LATENCY) for a in fleet.hosts for b in fleet.hosts if a != b}
    addresses = fleet.addresses()
    first = time.time_ns() // 1_000_000 // TAU + 15  # time enough to hand the query out
    deployment = Deployment(
        "by-delta", plan, addresses, heartbeats=False, first_interval=first, shapes=shapes
    )
    clients = {s.name: SiteClient(addresses[s.site], fleet.access) for s in streams}
    for client in clients.values():
        client.start(deployment)
    rng = np.random.default_rng(4)
    start = query.boundary(first - 1)
    rows = {}
    for name, client in clients.items():
        times = np.sort(rng.integers(0, TAU * INTERVALS, 80))
        rows[name] = pa.record_batch({"ts": times, "k": rng.integers(0, 12, 80)}, schema=SCHEMA)
        shifted = rows[name].set_column(0, "ts", pa.array(times + start))
        ack = client.put(deployment.name, name, shifted, producer="test", batch=0)
        assert ack.late == 0
    last = first + INTERVALS - 1
    names = clients.items()
    until_true(
        lambda: all(c.status("by-delta").streams[n].settled >= last for n, c in names), 60,
        f"not all results of {INTERVALS} intervals are there",
    )  # fmt: skip
    statuses = [client.status(deployment.name) for client in clients.values()]
    states = [stream for status in statuses for stream in status.streams.values()]
    assert [stream.late_messages for stream in states] == [0, 0, 0]
    assert min(stream.delta for stream in states) > 1000 * LATENCY
    assert min(link.delay for status in statuses for link in status.links.values()) > LATENCY
    found: Counter[object] = Counter()
    for client in clients.values():
        for result in client.results(deployment.name):
            found.update(counted(pa.Table.from_batches([result.rows])))
        client.stop(deployment.name, forget=True)
        client.close()
    expected: Counter[object] = Counter()
    for answer in window_join(query, rows, INTERVALS).values():
        for values, count in answer.items():
            moved = (v + (start if i % 2 == 0 else 0) for i, v in enumerate(values))
            expected[tuple(moved)] += count
    assert expected.total() > 100
    assert found == expected, f"lost {expected - found}, not to be {found - expected}"


def command(*words: object) -> Result:
    runner = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"})
    return runner.invoke(app, ["site", *map(str, words)])


def written(folder: Path, fleet: LocalSites) -> Path:
    """A query whose links take far longer than its `delta`, which the first intervals go by."""
    text = 'name = "hasty"\ntau = "200 ms"\ndelta = "20 ms"\npace = "delta"\n'
    text += 'on = [["A.k", "B.k"]]\n'
    text += f'token_file = "{fleet.directory / "token"}"\n'
    text += '[plan]\nplanner = "fixed"\nsequences = { A = ["SP-S B"], B = ["SP-D A"] }\n'
    for stream, host, other in (("A", "h0", "h1"), ("B", "h1", "h0")):
        text += f'[sites.{host}]\naddress = "{fleet.address(host)}"\n'
        text += f'[[links]]\nfrom = "{host}"\nto = "{other}"\nlatency = "800 ms"\n'
        text += f'[streams.{stream}]\nsite = "{host}"\nwindow = "1 second"\n'
        text += 'columns = { ts = "int64", k = "int64" }\n'
        text += 'input = { kind = "made-up", rate = 100, keys = { k = 10 } }\n'
    (folder / "query.toml").write_text(text)
    return folder / "query.toml"


def test_run_when_a_link_is_slower_than_delta_then_fails_and_says_what_came_too_late(
    tmp_path: Path, fleet: LocalSites
) -> None:
    query, out = written(tmp_path, fleet), tmp_path / "found.parquet"
    said = 'messages came too late .* results may be missing.* pace = "heartbeats"'
    done = command("run", query, "--intervals", 8, "--out", out)
    shown = command("status", query)
    with SiteClient(fleet.address("h0"), fleet.access) as client:
        status = client.status("hasty")
    stopped = command("stop", query, "--forget")
    for result in (done, shown):
        assert result.exit_code == 2, result.output
        assert re.search(said, " ".join(result.output.split())), result.output
        assert "too late" in result.output
    assert stopped.exit_code == 0, stopped.output
    assert status.streams["A"].late_messages > 0
    # what was found all the same is right
    found = pq.read_table(out).to_pydict()
    assert found["A.k"] == found["B.k"]
    apart = np.abs(np.array(found["A.ts"]) - np.array(found["B.ts"]))
    assert (apart <= 1000).all()
