"""Errors of a step outside Spark's workers."""

import os

import pytest

from dovetail.errors import StateMismatchError
from dovetail.spark.worker_errors import plain_errors


def test_plain_errors_when_the_process_is_not_sparks_then_changes_nothing() -> None:
    before = dict(os.environ)
    with pytest.raises(StateMismatchError), plain_errors():
        raise StateMismatchError("x")
    assert dict(os.environ) == before
