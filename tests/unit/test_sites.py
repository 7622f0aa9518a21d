"""The public names of joins at distant sites, as a program finds them."""

import subprocess
import sys

PROGRAM = """
import sys

import dovetail

assert callable(dovetail.sites.publish), dovetail.sites
assert callable(dovetail.sites.register), dovetail.sites
assert dovetail.sites.TimeWindow(5).size == 5
loaded = {"pyspark", "pyarrow.flight"} & set(sys.modules)
assert not loaded, f"{loaded} came with dovetail"
"""


def test_sites_when_dovetail_alone_is_imported_then_its_names_are_there() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
