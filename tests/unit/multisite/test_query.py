"""Queries and plans: keys of steps, topologies, horizons, and what is refused."""

import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError, KeyTypeError, UnknownColumnError
from dovetail.sites import Algorithm, Plan, Query, Step, Stream, TimeWindow, topology

SCHEMA = pa.schema([("ts", pa.int64()), ("a", pa.int64()), ("b", pa.string())])


def query(graph: str = "chain", columns: str = "a", names: str = "RST", delta: int = 10) -> Query:
    streams = tuple(Stream(name, SCHEMA, TimeWindow(100)) for name in names)
    return Query(streams, tuple(topology(graph, names, columns)), 10, delta)


def test_key_when_several_columns_join_then_has_them_all() -> None:
    key = query(columns="ab").key({"R"}, "S")
    assert key is not None
    assert key.probe == ("R.a", "R.b")
    assert key.stored == ("S.a", "S.b")


def test_key_when_two_streams_equal_one_column_then_checks_that_they_are_the_same() -> None:
    key = query("full").key(["R", "S"], "T")
    assert key is not None
    assert (key.probe, key.stored, key.same) == (("R.a",), ("T.a",), (("R.a", "S.a"),))


def test_key_when_nothing_joins_then_is_none() -> None:
    assert query("chain").key({"R"}, "T") is None


@pytest.mark.parametrize(("graph", "edges"), [("chain", 3), ("star", 3), ("cycle", 4), ("full", 6)])
def test_topology_when_made_then_has_its_edges(graph: str, edges: int) -> None:
    made = topology(graph, "ABCD", ["k"])
    assert len({frozenset(pair) for pair in made}) == len(made) == edges


def test_topology_when_unknown_then_lists_those_there_are() -> None:
    with pytest.raises(ArgumentError, match="chain, star, cycle, full"):
        topology("ring", "AB", ["k"])


@pytest.mark.parametrize(
    ("on", "error", "says"),
    [
        ([("R.a", "S.zz")], UnknownColumnError, r"S\.zz"),
        ([("R.a", "S.b")], KeyTypeError, "cast"),
        ([("R.a", "R.a")], ArgumentError, "within one stream"),
        ([("R.a", "S.a")], ArgumentError, "nothing joins T"),
    ],
)
def test_query_when_its_equalities_cannot_be_then_says_why(on, error, says: str) -> None:
    streams = tuple(Stream(name, SCHEMA, TimeWindow(100)) for name in "RST")
    with pytest.raises(error, match=says):
        Query(streams, tuple(on), 10, 5)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (pa.schema([("a", pa.int64())]), "no column 'ts'"),
        (pa.schema([("ts", pa.string())]), "integer or a timestamp"),
    ],
)
def test_stream_when_it_has_no_time_then_refuses(schema: pa.Schema, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        Stream("R", schema, TimeWindow(1))


def sequences(**changed: list[Step]) -> dict[str, list[Step]]:
    spd = Algorithm.SP_D
    every = {
        "R": [Step("S", spd), Step("T", spd)],
        "S": [Step("R", spd), Step("T", spd)],
        "T": [Step("S", spd), Step("R", spd)],
    }
    return {**every, **changed}


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([Step("S", Algorithm.SP_D)], "leaves out T"),
        ([Step("T", Algorithm.SP_D), Step("S", Algorithm.SP_D)], "no equality"),
        ([Step("S", Algorithm.SP_D), Step("S", Algorithm.SP_D)], "joined or unknown"),
    ],
)
def test_plan_when_a_sequence_cannot_be_then_says_which(steps: list[Step], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        Plan(query(), sequences(R=steps))


def test_plan_when_written_and_read_then_is_the_same() -> None:
    plan = Plan(query(), sequences())
    assert Plan.from_json(query(), plan.to_json()) == plan


@pytest.mark.parametrize(
    ("first", "second", "horizon"),
    [
        (Algorithm.SP_S, Algorithm.SP_S, 10),  # both copies are complete after delta
        (Algorithm.SP_D, Algorithm.SP_D, 20),
        (Algorithm.SM_S1, Algorithm.SM_D2, 50),
        (Algorithm.SM_S2, Algorithm.SM_S2, 50),  # waits once, asks twice
        (Algorithm.SM_D1, Algorithm.SM_D1, 30),
    ],
)
def test_horizon_when_delays_add_up_then_is_the_longest_way(first, second, horizon: int) -> None:
    every = {h: [Step(s.stream, Algorithm.SP_S) for s in q] for h, q in sequences().items()}
    plan = Plan(query(), {**every, "R": [Step("S", first), Step("T", second)]})
    assert plan.horizon() == horizon


def test_needs_when_steps_share_a_link_then_are_joined() -> None:
    every = sequences(
        R=[Step("S", Algorithm.SM_S1), Step("T", Algorithm.SP_S)],
        S=[Step("R", Algorithm.SP_D), Step("T", Algorithm.SM_D1)],
    )
    needs = Plan(query("full"), every).needs
    assert needs["S", "R"].some_rows
    assert not needs["S", "R"].all_rows
    link = needs["T", "R"]  # SP-S of R's sequence, SM-D1 of S's, whose rows are at R by then
    assert link.all_rows
    assert len(link.entries) == 1
