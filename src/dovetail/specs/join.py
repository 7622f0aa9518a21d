"""The arguments of `dovetail.join`, and the spec of two streams that they lead to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dovetail.errors import BandKeyError
from dovetail.kernel.keys import KeyCodec, band_width
from dovetail.kernel.keytypes import compared_types
from dovetail.specs.arguments import (
    On,
    check_clashes,
    check_distance,
    check_how,
    check_output,
    checked_memory,
    checked_partitions,
    checked_whole,
    key_names,
    state_path,
)
from dovetail.specs.conditions import Condition
from dovetail.specs.job import JobOptions, JobSpec, describe
from dovetail.specs.matching import Within, matching_of
from dovetail.twoway import TwoWaySpec, checked_algorithm
from dovetail.twoway.base import MIN_BUDGET_BYTES


@dataclass(frozen=True)
class JoinSpec(JobSpec):
    """A checked two-way join, as it was asked for."""

    twoway: TwoWaySpec
    where: str | None = None  #: the condition, the same for all spellings of it

    @property
    def inputs(self) -> tuple[pa.Schema, ...]:
        return self.twoway.schemas

    @property
    def output(self) -> pa.Schema:
        return self.twoway.layout.schema

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of each input, the columns that it is joined on."""
        return self.twoway.left_keys, self.twoway.right_keys

    def identity(self) -> dict[str, Any]:
        """The facts that must not change during the life of a state directory."""
        return {
            "job": "join",
            "algorithm": self.algorithm,
            "partitions": self.partitions,
            "on": [list(self.twoway.left_keys), list(self.twoway.right_keys)],
            "within": None if self.twoway.within is None else repr(self.twoway.within),
            "left": describe(self.twoway.left),
            "right": describe(self.twoway.right),
            # once, one key was dropped: results of such a join must not be taken for these
            **({"output": self.output.names} if self._band_of_one_name else {}),
            **({} if self.where is None else {"where": self.where}),
        }

    @property
    def _band_of_one_name(self) -> bool:
        return self.twoway.within is not None and bool(self.twoway.shared)


@dataclass(frozen=True)
class JoinOptions(JobOptions):
    """The arguments of `dovetail.join` besides the two inputs, as the caller gave them."""

    on: On | None
    within: Within = None
    where: str | None = None


def join_spec(
    left: pa.Schema,
    right: pa.Schema,
    options: JoinOptions,
    default_partitions: int,
    default_memory: int | None = None,
    condition: Condition | None = None,
    *,
    fixed_zone: bool = False,
) -> JoinSpec:
    """Check a join's arguments against the schemas of its inputs.

    condition: what `where=` says; the schemas have its computed columns, behind all others.
    fixed_zone: see `parse_condition`.
    """
    check_how(options.how, "join", ("inner",))
    matching = matching_of(options.on, options.within, condition)
    left_keys, right_keys = key_names(left, right, matching.on)
    check_clashes(left, right, left_keys, right_keys)
    within = _within(matching.within, compared_types(left, right, left_keys, right_keys))
    algorithm = checked_algorithm(options.algorithm, within)
    partitions = checked_partitions(options.partitions, default_partitions)
    residual = None
    if condition is not None:
        rest = condition.with_residual(matching.rest(right))
        residual = rest.checked(left, right, fixed_zone=fixed_zone)
    hidden = (0, 0) if condition is None else condition.hidden
    twoway = TwoWaySpec(left, right, left_keys, right_keys, within, residual, hidden)
    check_output(twoway.layout.schema)
    KeyCodec(twoway.codec.types)  # refuses key types that cannot be joined on
    return JoinSpec(
        twoway=twoway,
        algorithm=algorithm,
        memory_bytes=checked_memory(options.memory, partitions, MIN_BUDGET_BYTES, default_memory),
        partitions=partitions,
        state=None if options.state is None else state_path(options.state),
        slice_ms=checked_whole(options.slice_ms, "slice_ms"),
        where=None if condition is None else condition.canonical,
    )


def _within(within: Within, types: Sequence[pa.DataType]) -> int | float | None:
    if within is None:
        return None
    if len(types) != 1:
        raise BandKeyError(f"a band join (within=) has one key, not {len(types)}")
    check_distance(within, types[0])
    return band_width(within, types[0])
