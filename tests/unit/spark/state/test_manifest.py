"""The heads of manifests."""

from collections.abc import Callable
from pathlib import Path

from dovetail.spark.state.manifest import read_brief

WriteVersion = Callable[..., Path]


def test_read_head_when_manifest_is_long_then_reads_its_head_only(
    tmp_path: Path, write_version: WriteVersion
) -> None:
    path = write_version(tmp_path, 0, 1, 77)
    path.write_bytes(path.read_bytes() + b"\x00" * 1000)
    assert read_brief(path).pending == 77
