"""Errors of tasks reach the user as one sentence, without the worker's traceback.

Spark puts the traceback of a worker into the message of the query's failure, in front of the error
itself, and its state and plan behind it. An error that Dovetail raises on purpose says all there is
to say, so it goes without; any other is a bug and keeps its traceback.
"""

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from pyspark.errors import PythonException

from dovetail.errors import ArgumentError, DovetailError, StorageError, TableUnreadableError

P = ParamSpec("P")
T = TypeVar("T")

_PASSED_ON = {  # errors of a task that say all there is to say
    kind.__name__: kind for kind in (ArgumentError, StorageError, TableUnreadableError)
}
_HIDE = "SPARK_HIDE_TRACEBACK"  # what a worker asks when it reports the error that ends it


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let Dovetail's own errors leave a worker of Spark's without a traceback."""
    try:
        yield
    except DovetailError:
        if _is_sparks_process():
            os.environ[_HIDE] = "1"  # the process ends with this error, so no other is hidden
        raise


def with_plain_errors(generate: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Wrap a generator function in `plain_errors`."""

    @functools.wraps(generate)
    def generating(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        with plain_errors():
            yield from generate(*args, **kwargs)

    return generating


@contextmanager
def own_errors() -> Iterator[None]:
    """Let an error of ours that a task raised leave a Spark job as what it was."""
    try:
        yield
    except PythonException as error:
        problem = re.search(rf"errors\.({'|'.join(_PASSED_ON)}): (.*)", str(error))
        if problem is None:
            raise
        raise _PASSED_ON[problem[1]](problem[2]) from error


def _is_sparks_process() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and str(spec.name).startswith("pyspark.")
