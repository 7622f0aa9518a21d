"""The skew of a stream's keys, from `history=`, or from the stream if it is a batch.

The sample is taken when it is first asked for, in one Spark job over the key columns, and kept: the
number of the table's rows, on which the skew depends too, is known better once that is staged.
"""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dovetail.costs.skew import UNIFORM, Skew, measured_skew
from dovetail.errors import ArgumentError
from dovetail.kernel.keys import Codes
from dovetail.semistream import SemiStreamSpec
from dovetail.spark.jobs.checks import check_history
from dovetail.spark.layout import quoted

SAMPLED_ROWS = 20_000  #: unless something else is asked for
_SEED = 7


class StreamKeys:
    """The keys that a stream is expected to bring."""

    def __init__(self, stream: DataFrame, history: Any = None, rows: int = SAMPLED_ROWS) -> None:
        """rows: to take as a sample, at most; 0 reads nothing."""
        self._history = history
        self._frame = stream if history is None else history
        self._rows = rows if history is not None or not stream.isStreaming else 0
        self._codes: Codes | None = None

    @property
    def known(self) -> bool:
        """Whether there are keys to go by."""
        return self._rows > 0

    def check(self, spec: SemiStreamSpec) -> None:
        """Refuse a `history` that does not have the stream's keys."""
        frame = self._history
        if frame is None:
            return
        if not isinstance(frame, DataFrame):
            raise ArgumentError(
                f"history= is a {type(frame).__name__}, but has to be a batch DataFrame with rows "
                "like those that the stream will bring"
            )
        what, like = "the DataFrame", "the stream"
        check_history("history", what, frame, like, spec.stream, spec.stream_keys)

    def skew(self, spec: SemiStreamSpec, values: int) -> Skew:
        """Their skew, if there are so many in all; uniform if there are none to go by."""
        if not self.known:
            return UNIFORM
        if self._codes is None:
            self._codes = self._sampled(spec)
        return measured_skew(self._codes, values)

    def _sampled(self, spec: SemiStreamSpec) -> Codes:
        keys = self._frame.select(*(quoted(name) for name in spec.stream_keys))
        some = keys.orderBy(F.rand(_SEED)).limit(self._rows).toArrow()
        codes, valid = spec.codec.encode([column.combine_chunks() for column in some.columns])
        return codes if valid is None else codes[valid]
