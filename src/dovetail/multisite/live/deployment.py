"""What the query node hands out to every host: query, plan, addresses, and how time is kept."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.multisite.costs import LinkPrice, Prices
from dovetail.multisite.plan import PAPER, Algorithm
from dovetail.multisite.query import MOST_TIME, Query, Stream
from dovetail.multisite.tree import AnyPlan, Level, TreePlan, levels_of, plan_of_json
from dovetail.multisite.windows import CountWindow, TimeWindow, Window

Clock = Literal["wall", "rows"]
CLOCKS: tuple[Clock, ...] = ("wall", "rows")
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}  #: in nanoseconds
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Shape:
    """What is done to a link on purpose: seconds for each message, bytes a second, or no way."""

    latency: float = 0.0
    bandwidth: float = math.inf
    cut: bool = False

    def __post_init__(self) -> None:
        numbers = not any(isinstance(v, bool | str) for v in (self.latency, self.bandwidth))
        # written so that NaN is refused
        if not (numbers and 0 <= self.latency < math.inf and self.bandwidth > 0):
            raise ArgumentError(
                f"a link of latency {self.latency} s and bandwidth {self.bandwidth} bytes/s: "
                "the latency must be 0 or more, the bandwidth above 0"
            )
        if not isinstance(self.cut, bool):
            raise ArgumentError(f"cut={self.cut!r}: true or false")

    def to_json(self) -> dict[str, Any]:
        bandwidth = None if math.isinf(self.bandwidth) else self.bandwidth
        return {"latency": self.latency, "bandwidth": bandwidth, "cut": self.cut}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Shape":
        try:
            bandwidth = data["bandwidth"]
            return cls(data["latency"], math.inf if bandwidth is None else bandwidth, data["cut"])
        except (KeyError, TypeError) as error:
            raise ArgumentError(f"a shape is latency, bandwidth and cut ({error})") from error


def prices_of(shapes: Mapping[tuple[str, str], Shape], second: float) -> Prices:
    """What messages cost: by the shape of the links, or else by their bytes.

    `second`: in the unit of the time columns. Whoever plans, and plans again, goes by these.
    """
    links = {
        ends: LinkPrice(shape.latency * second, shape.bandwidth / second)
        for ends, shape in shapes.items()
    }
    return Prices(LinkPrice(0.0, 1.0), links)


@dataclass(frozen=True)
class Deployment:
    """A query as it runs.

    `clock`: intervals end by the wall clock, or when whoever sends the rows says so. `ahead`: how
    many intervals a stream may be past the last one that all are done with; so a host that waits
    for another holds its input up, and not ever more rows.
    """

    name: str
    plan: AnyPlan
    addresses: Mapping[str, str]  #: of hosts
    clock: Clock = "wall"
    unit: str = "ms"  #: of the time columns
    heartbeats: bool = True
    first_interval: int = 1
    ahead: int = 32
    replan_every: int = 0  #: intervals; 0: never
    algorithms: tuple[Algorithm, ...] = PAPER  #: that a new plan may use
    shapes: Mapping[tuple[str, str], Shape] = field(default_factory=dict)  #: by hosts, from and to

    def __post_init__(self) -> None:
        check_name("a query", self.name)
        whole = {n: getattr(self, n) for n in ("first_interval", "ahead", "replan_every")}
        for name, value in whole.items():
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MOST_TIME:
                raise ArgumentError(f"{name}={value!r}: a whole number of 64 bits")
        if self.clock not in CLOCKS or self.unit not in UNITS:
            raise ArgumentError(
                f"clock={self.clock!r}, unit={self.unit!r}: clocks are {', '.join(CLOCKS)}, units "
                f"{', '.join(UNITS)}"
            )
        if self.clock == "rows" and not self.heartbeats:
            raise ArgumentError(
                "waiting for delta needs the wall clock: use heartbeats where rows make the time"
            )
        check_plan(self.plan, self.ahead, self.replan_every)
        if missing := [host for host in self.hosts if host not in self.addresses]:
            raise ArgumentError(f"there is no address for {', '.join(missing)}")

    @property
    def query(self) -> Query:
        return self.plan.query

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        return levels_of(self.plan)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """In the order of their first streams; the first of them plans again while running."""
        return tuple(dict.fromkeys(stream.site for stream in self.query.streams))

    def streams_of(self, host: str) -> tuple[str, ...]:
        return tuple(stream.name for stream in self.query.streams if stream.site == host)

    @property
    def follows_delays(self) -> bool:
        """Whether `delta` is to be what links show, as sites or the planner go by it."""
        return self.clock == "wall" and (not self.heartbeats or self.replan_every > 0)

    def units(self, seconds: float) -> int:
        """A span of time in the unit of the time columns, rounded up."""
        return math.ceil(seconds * 1_000_000_000 / UNITS[self.unit])

    @cached_property
    def digest(self) -> str:
        """Of all that sites must agree on: where they are may change while a query runs."""
        data = self.to_json()
        del data["addresses"], data["shapes"]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

    def moved(self, addresses: Mapping[str, str]) -> "Deployment":
        return replace(self, addresses=dict(addresses))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "query": _query_json(self.query),
            "plan": self.plan.to_json(),
            "addresses": dict(self.addresses),
            "clock": self.clock,
            "unit": self.unit,
            "heartbeats": self.heartbeats,
            "first_interval": self.first_interval,
            "ahead": self.ahead,
            "replan_every": self.replan_every,
            "algorithms": [algorithm.value for algorithm in self.algorithms],
            "shapes": [[*ends, shape.to_json()] for ends, shape in self.shapes.items()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Deployment":
        """What `to_json` made. Anything else is an `ArgumentError`."""
        try:
            values = dict(data)
            query = _query_of(values.pop("query"))
            values["plan"] = plan_of_json(query, values["plan"])
            values["algorithms"] = tuple(Algorithm(a) for a in values["algorithms"])
            shapes = values["shapes"]
            values["shapes"] = {(a, b): Shape.from_json(shape) for a, b, shape in shapes}
            return cls(**values)
        except (
            KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError,
            OSError, pa.ArrowException,
        ) as error:  # fmt: skip
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(
                f"not a query as it is handed out to sites ({type(error).__name__}: {error}); do "
                "both ends run the same version?"
            ) from error


def check_plan(plan: AnyPlan, ahead: int, replan_every: int) -> None:
    """Refuse plans that sites cannot run in this way."""
    if isinstance(plan, TreePlan):
        if replan_every:
            raise ArgumentError(
                f"replan_every={replan_every}: a tree plan cannot be changed while it runs, as no "
                "other could use the intermediate results that it keeps; write 0, or use a linear "
                "plan"
            )
    elif lacking := [name for name, steps in plan.sequences.items() if not steps]:
        # nothing would tell the others how far it is, and they could run ahead of it for ever
        raise ArgumentError(f"the plan has no join sequence for {', '.join(lacking)}")
    if ahead < 2:
        raise ArgumentError(f"ahead={ahead}: an interval is over when the next has begun")


def check_name(what: str, name: str) -> None:
    """Names of queries and hosts become names of folders."""
    if not _NAME.fullmatch(name):
        raise ArgumentError(
            f"{what} cannot be called {name!r}: up to 64 letters, digits, '_', '.', '-', and a "
            "letter or digit first"
        )


def _query_json(query: Query) -> dict[str, Any]:
    return {
        "streams": [
            {
                "name": stream.name,
                "schema": base64.b64encode(stream.schema.serialize().to_pybytes()).decode(),
                "time": stream.time,
                "site": stream.site,
                "rows": stream.window.rows if isinstance(stream.window, CountWindow) else None,
                "size": stream.window.size if isinstance(stream.window, TimeWindow) else None,
            }
            for stream in query.streams
        ],
        "on": [list(pair) for pair in query.on],
        "tau": query.tau,
        "delta": query.delta,
        "lateness": query.lateness,
        "compact": query.compact,
    }


def _query_of(data: Mapping[str, Any]) -> Query:
    streams = []
    for stream in data["streams"]:
        window: Window = (
            TimeWindow(stream["size"]) if stream["rows"] is None else CountWindow(stream["rows"])
        )
        check_name("a site", stream["site"])
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stream["schema"])))
        streams.append(Stream(stream["name"], schema, window, stream["time"], stream["site"]))
    on = tuple((left, right) for left, right in data["on"])
    return Query(tuple(streams), on, data["tau"], data["delta"], data["lateness"], data["compact"])
