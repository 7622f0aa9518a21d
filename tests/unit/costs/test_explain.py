"""Explanations say what a join will do, with the numbers that the operators work with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dovetail.costs.explain import PlannedJoin, explain_join
from dovetail.costs.explanation import Explanation
from dovetail.costs.widths import ASSUMED_BYTES, row_width
from dovetail.kernel.blocks import BlockStore
from dovetail.kernel.memory import Budget, format_bytes
from dovetail.kernel.protocol import Context
from dovetail.twoway import ALGORITHMS, TwoWaySpec, make
from dovetail.twoway.base import WORKING_SHARE

LEFT = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("who", pa.string())])
RIGHT = pa.schema([("id", pa.int64()), ("paid", pa.float32())])
SPEC = TwoWaySpec(LEFT, RIGHT, ("id",), ("id",))
PLAN = PlannedJoin(
    spec=SPEC,
    algorithm="xjoin",
    asked_algorithm="auto",
    memory_bytes=8_000_000,
    partitions=4,
    asked_partitions=None,
    batch_rows=10_000,
    streaming=True,
    state=Path("/ckpt/join"),
    state_note="new: made when the query starts",
)


def section(explanation: Explanation, title: str) -> str:
    return "\n".join(dict(explanation.sections)[title])


def test_explain_when_printed_then_has_every_section() -> None:
    text = str(explain_join(PLAN))
    assert [line for line in text.splitlines() if not line.startswith(" ")] == [
        "join",
        "keys",
        "algorithm",
        "partitions",
        "memory",
        "when memory is full",
        "when the inputs end or fall silent",
        "expected, by a sample",
        "state",
        "output",
    ]
    assert "left.id = right.id" in text
    assert "id int64, amount double, who string, paid float" in text
    assert "/ckpt/join" in text
    assert "new: made when the query starts" in text
    assert "no estimate: no sample of the inputs was taken" in text
    assert max(map(len, text.splitlines())) <= 100


def test_explain_when_there_is_a_budget_then_names_the_split_of_the_operator(
    tmp_path: Path,
) -> None:
    share = 2_000_000
    operator = make("xjoin", SPEC, Context(Budget(share), BlockStore(tmp_path, SPEC.schemas, "x")))
    memory = section(explain_join(PLAN), "memory")
    assert f"{format_bytes(share)} for each partition" in memory
    assert f"{format_bytes(operator.working_bytes)}  working memory" in memory
    assert f"{format_bytes(share - operator.working_bytes)}  rows with their index" in memory


def test_explain_when_rows_are_counted_then_leaves_room_for_index_and_input_batch() -> None:
    memory = section(explain_join(PLAN), "memory")
    free = 4 * (1_250_000 - 36 * 10_000)
    assert f"about {free // 4 // (36 + 20) * 4:,} rows of left" in memory
    assert f"about {free // 4 // (12 + 20) * 4:,} rows of right" in memory


def test_explain_when_an_input_batch_does_not_count_in_full_then_says_so_and_what_bounds_it() -> (
    None
):
    memory = section(explain_join(replace(PLAN, memory_bytes=400_000)), "memory")
    share = 100_000
    counted = (share - int(share * WORKING_SHARE)) // 2
    assert f"{format_bytes(36 * 10_000 - counted)} of it come on top of memory" in memory
    assert "spark.sql.execution.arrow.maxBytesPerBatch" in memory
    assert "come on top of memory" not in section(explain_join(PLAN), "memory")


def test_explain_when_unbounded_then_nothing_spills() -> None:
    explanation = explain_join(replace(PLAN, memory_bytes=None))
    assert "unbounded" in section(explanation, "memory")
    assert "never" in section(explanation, "when memory is full")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("id",), "ordered and exact"),
        (("who",), "hashed"),
        (("id", "who"), "int64, string: hashed"),
    ],
)
def test_explain_when_keys_differ_then_says_how_they_are_coded(
    keys: tuple[str, ...], said: str
) -> None:
    spec = TwoWaySpec(LEFT, LEFT, keys, keys)
    assert said in section(explain_join(replace(PLAN, spec=spec)), "keys")


def test_explain_when_it_is_a_band_join_then_says_who_does_them_and_how_rows_are_split() -> None:
    spec = replace(SPEC, within=5)
    explanation = explain_join(replace(PLAN, spec=spec, algorithm="diner"))
    assert "|left.id - right.id| <= 5" in section(explanation, "join")
    assert "band joins are done by shj, diner," in section(explanation, "algorithm")
    assert "split by ranges of the key" in section(explanation, "partitions")
    assert "least joined values" in section(explanation, "when memory is full")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_explain_when_an_algorithm_is_asked_for_then_says_what_it_does(algorithm: str) -> None:
    explanation = explain_join(replace(PLAN, algorithm=algorithm, asked_algorithm=algorithm))
    said = section(explanation, "algorithm")
    assert f"{algorithm}, as asked" in said
    assert len(said.splitlines()) == 2
    full = section(explanation, "when memory is full")
    assert ("stops with an error" in full) == (algorithm == "shj")


def test_explain_when_settings_were_asked_for_then_says_so() -> None:
    asked = replace(PLAN, asked_algorithm="xjoin", asked_partitions=4)
    explanation = explain_join(asked)
    assert "xjoin, as asked" in section(explanation, "algorithm")
    assert "4, as asked" in section(explanation, "partitions")
    assert "parallelism" in section(explain_join(PLAN), "partitions")


def test_explain_when_it_is_a_batch_join_then_has_no_state() -> None:
    explanation = explain_join(replace(PLAN, streaming=False, state=None))
    assert "keeps nothing" in section(explanation, "state")
    assert "two batch inputs" in section(explanation, "join")


@pytest.mark.parametrize(
    ("type_", "nbytes"),
    [
        (pa.int64(), 8),
        (pa.bool_(), 1 / 8),
        (pa.timestamp("us", "UTC"), 8),
        (pa.decimal128(20, 2), 16),
        (pa.string(), 4 + ASSUMED_BYTES),
        (pa.binary(), 4 + ASSUMED_BYTES),
        (pa.null(), 0),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), 4 + 4 + ASSUMED_BYTES),
        (pa.list_(pa.int32()), 4 + 4 * 4),
        (pa.map_(pa.int32(), pa.int64()), 4 + 4 * 12),
    ],
    ids=str,
)
def test_row_width_when_only_the_type_is_known_then_follows_arrow(
    type_: pa.DataType, nbytes: float
) -> None:
    assert row_width(pa.schema([("x", type_)])).nbytes == nbytes


def test_row_width_when_a_string_is_guessed_then_names_the_column() -> None:
    assert "16 bytes for a value of who" in row_width(LEFT).source
    assert row_width(RIGHT).source == "by its types"


def test_row_width_when_there_is_a_sample_then_is_measured() -> None:
    sample = pa.table({"x": ["a" * 100] * 10})
    width = row_width(sample.schema, sample)
    assert 104 <= width.nbytes < 106
    assert width.source == "measured on 10 rows"


def test_row_width_when_the_sample_is_empty_then_the_types_tell() -> None:
    assert row_width(RIGHT, RIGHT.empty_table()).source == "by its types"
