"""A host and its queries: started, stopped and gone on with, each by itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dovetail.errors import SiteError, SiteRefusedError, SiteUnavailableError
from dovetail.multisite.live import host as host_module
from dovetail.multisite.live.access import Access
from dovetail.multisite.live.client import SiteClient
from dovetail.multisite.live.deployment import Deployment, Shape
from dovetail.multisite.live.host import Host, Part
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.live.server import SiteServer
from dovetail.multisite.pace import Timed
from dovetail.sites import Algorithm, Plan, Query, Step, Stream, TimeWindow

SCHEMA = pa.schema([("ts", pa.int64()), ("a", pa.int64())])
ACCESS = Access("t" * 16)


def deployed(name: str, other: str = "here", **settings: Any) -> Deployment:
    """A query of which at least one stream is here."""
    sites = {"A": "here", "B": other}
    streams = tuple(Stream(s, SCHEMA, TimeWindow(30), site=at) for s, at in sites.items())
    plan = Plan(
        Query(streams, (("A.a", "B.a"),), 10, 5),
        {"A": [Step("B", Algorithm.SP_D)], "B": [Step("A", Algorithm.SP_D)]},
    )
    addresses = dict.fromkeys(sites.values(), "grpc://127.0.0.1:1")
    return Deployment(name, plan, addresses, clock="rows", **settings)


def test_host_when_one_query_cannot_go_on_then_the_others_do_and_it_says_why(
    tmp_path: Path,
) -> None:
    host = Host("here", tmp_path, ACCESS)
    for name in ("broken", "whole"):
        host.start(deployed(name))
    host.close()
    (segment,) = (tmp_path / "broken").glob("events-*.log")
    data = bytearray(segment.read_bytes())
    data[20] ^= 1
    segment.write_bytes(data * 2)  # a damaged record, and whole ones behind it
    host = Host("here", tmp_path, ACCESS)
    host.restore()
    assert host.queries == ["whole"]
    with pytest.raises(SiteError, match=r"query 'broken' could not go on at 'here': .*damaged"):
        host.part("broken")
    host.stop("broken", forget=True)
    assert host.start(deployed("broken"))
    assert host.part("broken").status()["error"] is None
    host.close()


def test_host_when_a_query_is_being_stopped_then_it_is_not_started_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host("here", tmp_path, ACCESS)
    host.start(deployed("q"))
    stop = Part.stop

    def stop_slowly(part: Part) -> None:
        with pytest.raises(SiteUnavailableError, match="is being stopped"):
            host.start(deployed("q"))
        stop(part)

    monkeypatch.setattr(Part, "stop", stop_slowly)
    host.stop("q", forget=True)
    monkeypatch.undo()
    assert host.start(deployed("q"))
    host.close()


def test_host_when_plans_may_change_then_a_query_goes_on_with_the_links_it_was_planned_by(
    tmp_path: Path,
) -> None:
    shapes = {("here", "there"): Shape(latency=1.5)}
    begun = deployed("q", "there", shapes=shapes, replan_every=4)
    host = Host("here", tmp_path, ACCESS)
    host.start(begun)
    host.stop("q", forget=False)
    host.start(replace(begun, shapes={}))
    assert host.part("q").driver.deployment.shapes == shapes
    host.close()


def test_put_when_its_promise_is_no_number_then_it_is_refused_and_the_query_goes_on(
    tmp_path: Path,
) -> None:
    host = Host("here", tmp_path, ACCESS)
    host.start(deployed("q"))
    rows = pa.RecordBatch.from_pylist([{"ts": 1, "a": 1}], schema=SCHEMA)
    with SiteServer(host, "grpc://127.0.0.1:0", ACCESS) as server:
        with SiteClient(f"grpc://127.0.0.1:{server.port}", ACCESS) as client:
            until: Any
            for until in ("2026-01-01", True, 1.5):
                with pytest.raises(SiteRefusedError, match="a whole number"):
                    client.put("q", "A", rows, producer="p", batch=1, until=until)
            ack = client.put("q", "A", rows, producer="p", batch=1, until=2)
            assert (ack.duplicate, ack.repeated) == (False, False)
        host.close()


def test_timed_when_only_asked_then_a_longer_delta_still_counts() -> None:
    query = deployed("q").query
    plan = deployed("q").plan
    pace = Timed(query, lambda _: plan, 1)
    now = query.tick_time(9)
    asked = pace.settled(8, now)
    pace.delta = 20
    assert pace.settle(8, now) < asked
    pace.delta = 1
    settled = pace.settle(8, now)
    pace.delta = 50
    assert pace.settle(8, now) == settled


def test_host_when_a_query_starts_then_its_folder_stays_after_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(host_module, "sync_directory", synced.append)
    host = Host("here", tmp_path, ACCESS, Limits(durable=False))
    host.start(deployed("q"))
    host.close()
    assert synced == [tmp_path]
