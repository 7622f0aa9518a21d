"""Job files with several inputs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from dovetail.cli.job.file import Job, read_job
from dovetail.errors import JobFileError

REPOSITORY = Path(__file__).resolve().parents[4]
ALL = """
[inputs.person]
format = "parquet"
path = "orders"

[inputs.auction]
format = "parquet"
path = "payments"

[join_all]
on = "id"

[sink]
format = "parquet"
path = "out"
checkpoint = "ckpt"
"""


def read(folder: Path, text: str) -> Job:
    for name in ("orders", "payments", "data/orders", "data/customers", "data/shipments"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    file = folder / "job.toml"
    file.write_text(text)
    job = read_job(file)
    assert job.kind == "join_all"
    return job


def test_read_when_only_the_needed_keys_are_there_then_fills_in_the_rest(tmp_path: Path) -> None:
    job = read(tmp_path, ALL)
    assert list(job.inputs) == ["person", "auction"]
    assert job.inputs["auction"].path == str(tmp_path / "payments")
    assert job.options == {"on": "id", "state": f"{tmp_path}/ckpt/dovetail/join_all"}


def test_read_when_all_is_given_then_is_understood(tmp_path: Path) -> None:
    text = ALL.replace(
        'on = "id"',
        'on = ["id", ["person.a", "auction.b"], ["person.t", "auction.t", "5 minutes"],\n'
        '  ["person.n", "auction.n", 0.5]]\nwithin = 2\nmemory = "2MB"\nstate = "kept"\n'
        'algorithm = "mjoin"\npartitions = 3\nslice_ms = 99\nsizes = { person = 1, auction = 3 }',
    )
    assert read(tmp_path, text).options == {
        "on": [
            "id",
            ("person.a", "auction.b"),
            ("person.t", "auction.t", dt.timedelta(minutes=5)),
            ("person.n", "auction.n", 0.5),
        ],
        "within": 2,
        "memory": "2MB",
        "state": str(tmp_path / "kept"),
        "algorithm": "mjoin",
        "partitions": 3,
        "slice_ms": 99,
        "sizes": {"person": 1, "auction": 3},
    }


def test_read_when_the_shipped_example_is_read_then_all_is_known(tmp_path: Path) -> None:
    text = (REPOSITORY / "examples" / "join_all.toml").read_text()
    job = read(tmp_path, text)
    assert list(job.inputs) == ["customer", "order", "shipment"]
    assert not job.history
    lines = ('within = "5 minutes"', 'state = "ckpt/join_all"', "slice_ms = 250", "history = true")
    for line in lines:
        assert f"# {line}" in text
        read(tmp_path, text.replace(f"# {line}", line, 1))


def test_read_when_history_is_asked_for_then_inputs_have_to_be_files(tmp_path: Path) -> None:
    text = ALL.replace('on = "id"', 'on = "id"\nhistory = true')
    assert read(tmp_path, text).history
    with pytest.raises(JobFileError, match=r"join_all.history takes a sample of files.*'rate'"):
        read(tmp_path, text.replace('"parquet"', '"rate"', 1))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('on = "id"', "", "join_all.on is missing; write a name that inputs share"),
        ('on = "id"', 'on = [["person.a"]]', "join_all.on is a list"),
        ('on = "id"', 'on = [["a.t", "b.t", "soon"]]', "no number and no span of time"),
        ('on = "id"', 'on = "id"\nalgorithm = "xjoin"', "Allowed: auto, miner, miner-paper, mjoin"),
        ('on = "id"', 'on = "id"\nsizes = { a = "x" }', "join_all.sizes is a table"),
        ('on = "id"', 'on = "id"\npartition = 1', "did you mean 'partitions'?"),
        ('on = "id"', 'on = "id"\nhistory = "yes"', "join_all.history is a text"),
        ('path = "payments"', 'path = "paymens"', "inputs.auction.path names"),
        ("[sink]", "[left]\n[sink]", "left does not go with [join_all], which has inputs as its"),
        ("[sink]", "[join]\n[sink]", "join_all cannot stand beside join"),
        ("[join_all]", "[spark.conf]", "the table [join_all] is missing. Tables: spark, inputs"),
        ("[inputs.person]", "[inputs]\nperson = 3\n[inputs.other]", "inputs.person is a number"),
    ],
)
def test_read_when_there_is_a_mistake_then_names_key_and_remedy(
    before: str, after: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(JobFileError) as raised:
        read(tmp_path, ALL.replace(before, after, 1))
    assert said in str(raised.value)
