"""An operator on a workbench: rows are pushed by key, and everything else is done by hand."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dovetail.kernel.blocks import BLOCK, BlockStore
from dovetail.kernel.memory import Budget
from dovetail.kernel.protocol import SIDES, Context, Snapshot, Status
from dovetail.twoway import TwoWayJoin, TwoWaySpec, make
from dovetail.twoway.base import MIN_BUDGET_BYTES
from support.arrivals import Step
from support.conformance import Outcome, assert_exactly_once, run_script
from support.generators import Shape, join_spec, make_relations
from support.oracle import nested_loop

Pair = tuple[int, int]
MakeBench = Callable[..., "Workbench"]
RunInterrupted = Callable[[str, Sequence[Step]], Outcome]


@dataclass(frozen=True)
class Sealed:
    """A segment on disk."""

    number: int
    group: int
    rows: list[int]
    blocks: list[NDArray[np.void]]


@dataclass
class Workbench:
    """One operator, all that it was given and all that it gave back."""

    directory: Path
    algorithm: str
    budget: int | None = None
    within: int | None = None
    payload_bytes: int = 0
    keys: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    found: list[Pair] = field(default_factory=list)
    lives: int = 0

    def __post_init__(self) -> None:
        schemas = [
            pa.schema(
                [("k", pa.int64()), (f"{name}_id", pa.int64()), (f"{name}_text", pa.string())]
            )
            for name in ("left", "right")
        ]
        self.spec = TwoWaySpec(schemas[0], schemas[1], ("k",), ("k",), self.within)
        self.operator = self._make(None, ())

    def _make(self, snapshot: Snapshot | None, files: tuple[str, ...]) -> TwoWayJoin:
        self.lives += 1
        store = BlockStore(self.directory, self.spec.schemas, f"life{self.lives}", files)
        return make(self.algorithm, self.spec, Context(Budget(self.budget), store), snapshot)

    def push(self, side: int, keys: Sequence[int]) -> list[Pair]:
        """The next rows of a side come, as one batch; returns what they bring."""
        first = len(self.keys[side])
        self.keys[side].extend(int(key) for key in keys)
        columns = [
            pa.array(list(keys), pa.int64()),
            pa.array(np.arange(first, first + len(keys))),
            pa.array(["x" * self.payload_bytes] * len(keys), pa.string()),
        ]
        batch = pa.record_batch(columns, schema=self.spec.schemas[side])
        return self._take(self.operator.push(side, batch))

    def poll(self, fuel: int = 1_000_000) -> list[Pair]:
        return self._take(self.operator.poll(fuel))

    def finish(self) -> None:
        for side in SIDES:
            self.operator.finish(side)

    def complete(self) -> list[Pair]:
        """End both inputs and do all that is left."""
        before = len(self.found)
        self.finish()
        while self.operator.status() is not Status.DONE:
            self.poll()
        assert self.operator.pending() == 0
        return self.found[before:]

    def restore(self, budget: int | None = None) -> None:
        snapshot = self.operator.snapshot()
        store = self.operator.ctx.store
        store.sync()
        store.close()
        self.budget = budget or self.budget
        ended = self.operator.ended
        self.operator = self._make(snapshot, tuple(store.files))
        for side in SIDES:
            if ended[side]:
                self.operator.finish(side)
        self.operator.check()

    def segments(self, part: int) -> list["Sealed"]:
        """The segments on disk of a part of HMJ or PMJ that are not being merged."""
        merger = self.operator.merger  # type: ignore[attr-defined]
        found = []
        for entry in merger.sealed(part):
            segment = merger.open(entry)
            blocks = [
                np.concatenate([np.zeros(0, dtype=BLOCK), *known.entries(0, len(known))])
                for known in segment.blocks
            ]
            found.append(Sealed(segment.number, segment.group, list(segment.counts), blocks))
            segment.forget()
        return found

    def expected(self) -> list[Pair]:
        """Every pair that matches, by a nested loop."""
        reach = self.within or 0
        left, right = self.keys
        return [
            (i, j) for i, a in enumerate(left) for j, b in enumerate(right) if abs(a - b) <= reach
        ]

    def assert_each_pair_once(self) -> None:
        assert sorted(self.found) == self.expected()

    @property
    def phases(self) -> dict[str, int]:
        return self.operator.ctx.counters.rows_out

    def _take(self, batches: Iterator[pa.RecordBatch]) -> list[Pair]:
        before = len(self.found)
        for out in batches:
            ids = (out[name].to_pylist() for name in ("left_id", "right_id"))
            self.found.extend(zip(*ids, strict=True))
        self.operator.check()
        return self.found[before:]


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[MakeBench]:
    benches: list[Workbench] = []

    def make_one(algorithm: str, **options: int | None) -> Workbench:
        directory = tmp_path / str(len(benches))
        directory.mkdir()
        benches.append(Workbench(directory, algorithm, **options))  # type: ignore[arg-type]
        return benches[-1]

    yield make_one
    for bench in benches:
        bench.operator.ctx.store.close()


@pytest.fixture(params=[25, 1], ids="domain={}".format)
def run_interrupted(request: pytest.FixtureRequest, tmp_path: Path) -> RunInterrupted:
    """Runs a script on 70 rows a side in the least memory, and asserts each pair once."""
    shape = Shape(70, ("int64",), domain=request.param, payload_bytes=700)
    relations = make_relations(np.random.default_rng(0), shape, shape)
    spec = join_spec(relations)

    def run(algorithm: str, script: Sequence[Step]) -> Outcome:
        directory = tmp_path / "run"
        outcome = run_script(algorithm, spec, relations, script, MIN_BUDGET_BYTES, directory)
        assert_exactly_once(outcome, nested_loop(spec, *relations))
        return outcome

    return run
