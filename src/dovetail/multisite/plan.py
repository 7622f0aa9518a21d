"""Plans: for each stream a sequence of one-way joins with the others (Definition 1).

A one-way join starts where the rows so far are, the *source*, and goes to the stream it adds, whose
site is the *destination*. `SP` sends full rows, `SM` join keys first; `S` joins at the source, `D`
at the destination; 1 and 2 are the semijoin steps. From its plan a site knows of which windows it
keeps a copy, and whom it has to keep up to date (`LinkNeeds`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.multisite.query import Query, StepKey


class Algorithm(StrEnum):
    """The six one-way joins of the paper, and two with Bloom filters in place of keys."""

    SP_S = "SP-S"
    SP_D = "SP-D"
    SM_S1 = "SM-S1"
    SM_S2 = "SM-S2"
    SM_D1 = "SM-D1"
    SM_D2 = "SM-D2"
    SM_S1B = "SM-S1B"
    SM_D1B = "SM-D1B"

    @property
    def at_source(self) -> bool:
        return self.value[3] == "S"

    @property
    def bloom(self) -> bool:
        return self.value.endswith("B")

    def delay(self, elapsed: int, delta: int) -> int:
        """The longest time since the end of the interval after this step, if `elapsed` before it.

        A copy is probed once all of it must be there, `delta` after the interval's end
        (constraint 1); every message takes up to `delta` more.
        """
        waits, messages = _DELAYS[self.value.removesuffix("B")]
        return (max(elapsed, delta) if waits else elapsed) + messages * delta


_DELAYS = {
    "SP-S": (True, 0), "SP-D": (False, 1), "SM-S1": (False, 2),
    "SM-S2": (True, 2), "SM-D1": (True, 1), "SM-D2": (False, 3),
}  # fmt: skip

PAPER = tuple(a for a in Algorithm if not a.bloom)


@dataclass(frozen=True)
class Step:
    """Join the rows so far with one more stream."""

    stream: str
    algorithm: Algorithm


@dataclass(frozen=True)
class PlacedStep:
    """A step, and all that follows from its place in the sequence."""

    head: str
    index: int
    stream: str
    algorithm: Algorithm
    source: str  #: the stream at whose site the rows so far are
    key: StepKey
    stored: StepKey  #: of the key, what concerns the stored rows: the same whoever probes them
    output: pa.Schema  #: of the joined rows
    done: tuple[str, ...]  #: the streams that have been joined before it, the head first


@dataclass(frozen=True)
class LinkNeeds:
    """What a site must know of another's window, by the steps of a plan."""

    all_rows: bool = False  #: SP-S: every row
    some_rows: bool = False  #: rows on request, or that another step sent
    entries: frozenset[StepKey] = frozenset()  #: SM-S2, SM-D1: which keys there are
    blooms: frozenset[StepKey] = frozenset()  #: SM-D1B: a filter of them

    def __or__(self, other: "LinkNeeds") -> "LinkNeeds":
        return LinkNeeds(
            self.all_rows or other.all_rows,
            self.some_rows or other.some_rows,
            self.entries | other.entries,
            self.blooms | other.blooms,
        )

    @property
    def rows(self) -> bool:
        return self.all_rows or self.some_rows


def _needs(step: PlacedStep) -> LinkNeeds:
    algorithm, key, none = step.algorithm, frozenset([step.stored]), frozenset[StepKey]()
    return LinkNeeds(
        all_rows=algorithm is Algorithm.SP_S,
        some_rows=algorithm in (Algorithm.SM_S1, Algorithm.SM_S1B, Algorithm.SM_S2),
        entries=key if algorithm in (Algorithm.SM_S2, Algorithm.SM_D1) else none,
        blooms=key if algorithm is Algorithm.SM_D1B else none,
    )


class Plan:
    """A join sequence for each stream, checked against the query.

    `one_way`: streams may lack a sequence; their rows are then joined with, but head no results.
    """

    def __init__(
        self, query: Query, sequences: Mapping[str, Sequence[Step]], *, one_way: bool = False
    ) -> None:
        self.query = query
        self._one_way = one_way
        self.sequences = {name: tuple(sequences.get(name, ())) for name in query.names}
        if unknown := [name for name in sequences if name not in query.names]:
            raise ArgumentError(f"the plan has sequences for {unknown}, which are no streams")
        self.placed = {name: tuple(self._place(name)) for name in query.names}
        #: by stream, the head and the place of the steps that probe its window
        self.probing: dict[str, set[tuple[str, int]]] = {name: set() for name in query.names}
        self.needs: dict[tuple[str, str], LinkNeeds] = {}  #: by owner and holder
        for step in self.steps():
            self.probing[step.stream].add((step.head, step.index))
            link = (step.stream, step.source)
            self.needs[link] = self.needs.get(link, LinkNeeds()) | _needs(step)
        self.needs = {link: needs for link, needs in self.needs.items() if needs != LinkNeeds()}

    def _place(self, head: str) -> Iterator[PlacedStep]:
        done, source = [head], head
        schema = self.query.stream(head).qualified
        if self._one_way and not self.sequences[head]:
            return
        for index, step in enumerate(self.sequences[head]):
            where = f"the sequence of {head!r}, step {index + 1},"
            if step.stream in done or step.stream not in self.query.names:
                raise ArgumentError(f"{where} joins {step.stream!r}, which is joined or unknown")
            key = self.query.key(done, step.stream)
            if key is None:
                raise ArgumentError(f"{where} joins {step.stream!r} by no equality of the query")
            schema = pa.schema([*schema, *self.query.stream(step.stream).qualified])
            stored = StepKey(key.stored, key.stored, key.codec)
            yield PlacedStep(
                head, index, step.stream, step.algorithm, source, key, stored, schema, tuple(done)
            )
            done.append(step.stream)
            source = source if step.algorithm.at_source else step.stream
        if len(done) < len(self.query.names):
            missing = [name for name in self.query.names if name not in done]
            raise ArgumentError(f"the sequence of {head!r} leaves out {', '.join(missing)}")

    def steps(self) -> Iterator[PlacedStep]:
        for placed in self.placed.values():
            yield from placed

    def horizon(self, delta: int | None = None) -> int:
        """The longest time after an interval's end at which a window is still probed for it.

        The paper's delta for multi-way joins is "the maximum accumulated delay" (Sect. 2.2); its
        proofs (Appendix A) let a message arrive by then that is sent at that time only. Here it is
        added up step by step from the delay of one message, `delta` if that of the query is not
        current any more.
        """
        delta = self.query.delta if delta is None else delta
        longest = 0
        for placed in self.placed.values():
            elapsed = 0
            for step in placed:
                elapsed = step.algorithm.delay(elapsed, delta)
            longest = max(longest, elapsed)
        return longest

    def to_json(self) -> str:
        return json.dumps(
            {h: [[s.stream, s.algorithm.value] for s in seq] for h, seq in self.sequences.items()}
        )

    @classmethod
    def from_json(cls, query: Query, data: str) -> "Plan":
        sequences = json.loads(data)
        return cls(
            query,
            {h: [Step(s, Algorithm(a)) for s, a in seq] for h, seq in sequences.items()},
            one_way=not all(sequences.values()),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.sequences == other.sequences

    def __hash__(self) -> int:
        return hash(tuple(self.sequences.items()))

    def __repr__(self) -> str:
        lines = (
            " -> ".join([head, *(f"{step.algorithm} {step.stream}" for step in sequence)])
            for head, sequence in self.sequences.items()
        )
        return "; ".join(lines)
