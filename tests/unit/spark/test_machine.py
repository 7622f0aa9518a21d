"""The memory that a join may have where nobody says."""

from types import SimpleNamespace
from typing import Any

from dovetail.spark.machine import default_memory


def test_memory_when_it_is_left_out_on_a_cluster_then_is_a_quarter_of_an_executor() -> None:
    def context(**settings: str) -> Any:
        conf = {name.replace("_", "."): value for name, value in settings.items()}
        return SimpleNamespace(master="spark://host:7077", getConf=lambda: conf)

    assert default_memory(context()).nbytes == 256 << 20
    found = default_memory(context(spark_executor_memory="8g"))
    assert found.nbytes == 2 << 30
    assert "8.0 GB that an executor has (spark.executor.memory)" in found.words
    assert default_memory(context(spark_executor_memory="2048")).nbytes == 512 << 20
