"""The arguments of `dovetail.join`, and the spec of two streams that they lead to."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
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
from dovetail.specs.job import JobOptions, JobSpec, describe
from dovetail.twoway import TwoWaySpec, checked_algorithm
from dovetail.twoway.base import MIN_BUDGET_BYTES

Within = int | float | Decimal | dt.timedelta | str | None


@dataclass(frozen=True)
class JoinSpec(JobSpec):
    """A checked two-way join, as it was asked for."""

    twoway: TwoWaySpec

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
        }

    @property
    def _band_of_one_name(self) -> bool:
        return self.twoway.within is not None and bool(self.twoway.shared)


@dataclass(frozen=True)
class JoinOptions(JobOptions):
    """The arguments of `dovetail.join` besides the two inputs, as the caller gave them."""

    on: On
    within: Within = None


def join_spec(
    left: pa.Schema,
    right: pa.Schema,
    options: JoinOptions,
    default_partitions: int,
    default_memory: int | None = None,
) -> JoinSpec:
    """Check a join's arguments against the schemas of its inputs."""
    check_how(options.how, "join", ("inner",))
    left_keys, right_keys = key_names(left, right, options.on)
    check_clashes(left, right, left_keys, right_keys)
    within = _within(options.within, compared_types(left, right, left_keys, right_keys))
    algorithm = checked_algorithm(options.algorithm, within)
    partitions = checked_partitions(options.partitions, default_partitions)
    twoway = TwoWaySpec(left, right, left_keys, right_keys, within)
    check_output(twoway.layout.schema)
    KeyCodec(twoway.codec.types)  # refuses key types that cannot be joined on
    return JoinSpec(
        twoway=twoway,
        algorithm=algorithm,
        memory_bytes=checked_memory(options.memory, partitions, MIN_BUDGET_BYTES, default_memory),
        partitions=partitions,
        state=None if options.state is None else state_path(options.state),
        slice_ms=checked_whole(options.slice_ms, "slice_ms"),
    )


def _within(within: Within, types: Sequence[pa.DataType]) -> int | float | None:
    if within is None:
        return None
    if len(types) != 1:
        raise BandKeyError(f"a band join (within=) has one key, not {len(types)}")
    check_distance(within, types[0])
    return band_width(within, types[0])
