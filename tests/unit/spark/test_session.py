"""The Python that a session's workers run on."""

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dovetail.spark.session import choose_worker_python

if TYPE_CHECKING:
    from pyspark import SparkContext


def test_worker_python_when_it_is_chosen_after_the_session_was_made_then_it_is_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/later")
    context = SimpleNamespace(master="local[2]", pythonExec="/opt/earlier", getConf=dict)
    choose_worker_python(cast("SparkContext", context))
    assert context.pythonExec == "/opt/later"


@pytest.mark.parametrize(("conf", "chosen"), [(None, sys.executable), ("/opt/py", "/opt/py")])
def test_worker_python_when_the_session_s_conf_names_one_then_it_is_that(
    conf: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    settings = {} if conf is None else {"spark.pyspark.python": conf}
    context = SimpleNamespace(master="local[2]", pythonExec="python3", getConf=lambda: settings)
    choose_worker_python(cast("SparkContext", context))
    assert context.pythonExec == chosen


def test_worker_python_when_the_master_is_a_cluster_then_it_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    context = SimpleNamespace(master="spark://host:7077", pythonExec="python3", getConf=dict)
    choose_worker_python(cast("SparkContext", context))
    assert context.pythonExec == "python3"
