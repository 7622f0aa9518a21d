"""Iceberg and Delta tables as the table of `enrich`: live rows only, one snapshot at a time.

The tables are made with the libraries themselves. What is expected is the library's own scan of the
table, joined by Spark.
"""

import base64
import datetime as dt
import json
import os
import shutil
import struct
import sys
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, StringType
from pyroaring import BitMap
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import dovetail
from dovetail import errors
from dovetail.cli.job import execution
from dovetail.cli.job.file import read_job
from dovetail.spark.sources.tables import open_table

pytestmark = pytest.mark.spark

FORMATS = ["delta", "iceberg"]


def rows(start: int, stop: int, text: str = "v") -> pa.Table:
    """Customers: a key, and one column of each kind that matters."""
    keys = range(start, stop)
    at = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "name": pa.array([None if k % 7 == 0 else f"{text}{k}" for k in keys], pa.string()),
            "region": pa.array([f"r {k % 3}/é" for k in keys], pa.string()),
            "at": pa.array([at + dt.timedelta(k) for k in keys], pa.timestamp("us", "UTC")),
            "local": pa.array([at - dt.timedelta(k) for k in keys], pa.timestamp("us")),
            "credit": pa.array([Decimal(k) / 4 for k in keys], pa.decimal128(12, 2)),
            "since": pa.array([at.date()] * len(keys), pa.date32()),
        }
    )


class Delta:
    """A Delta table in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "my table.v1"

    def create(self, table: pa.Table, partition: str | None = None) -> None:
        write_deltalake(self.path, table, partition_by=[partition] if partition else None)

    def append(self, table: pa.Table) -> None:
        write_deltalake(self.path, table, mode="append")

    def delete(self, where: str) -> None:
        DeltaTable(self.path).delete(where)

    def replace(self, table: pa.Table, where: str) -> None:
        write_deltalake(self.path, table, mode="overwrite", predicate=where)

    def scan(self) -> pa.Table:
        return DeltaTable(self.path).to_pyarrow_table()


class Iceberg:
    """An Iceberg table in a folder, with a catalogue beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "my table.v1"
        self.uri = f"sqlite:///{folder}/catalogue.db"
        self.catalogue = SqlCatalog("lake", uri=self.uri, warehouse=folder.as_uri())

    def create(self, table: pa.Table, partition: str | None = None) -> None:
        self.declare(table.schema, partition)
        self.append(table)

    def declare(self, schema: pa.Schema, partition: str | None = None) -> None:
        self.catalogue.create_namespace_if_not_exists("sales")
        made = self.catalogue.create_table("sales.customers", schema, location=str(self.path))
        if partition:
            with made.update_spec() as spec:
                spec.add_field(partition, IdentityTransform(), f"by_{partition}")

    @property
    def table(self) -> Any:
        return self.catalogue.load_table("sales.customers")

    def append(self, table: pa.Table) -> None:
        self.table.append(table)

    def add_file(self, path: Path, content: DataFileContent = DataFileContent.DATA) -> None:
        """Commit a file as it is."""
        file = DataFile.from_args(
            content=content,
            file_path=f"file://{path}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=pq.read_metadata(path).num_rows,
            file_size_in_bytes=path.stat().st_size,
            spec_id=0,
        )
        with self.table.transaction() as change, change.update_snapshot().fast_append() as append:
            append.append_data_file(file)

    def delete(self, where: str) -> None:
        self.table.delete(where)

    def replace(self, table: pa.Table, where: str) -> None:
        self.table.overwrite(table, where)

    def scan(self) -> pa.Table:
        return self.table.scan().to_arrow()

    def close(self) -> None:
        self.catalogue.close()


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "delta":
        yield Delta(tmp_path)
    else:
        made = Iceberg(tmp_path)
        yield made
        made.close()


@pytest.fixture
def icebergs(tmp_path: Path) -> Iterator[Iceberg]:
    made = Iceberg(tmp_path)
    yield made
    made.close()


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    return spark.range(0, 60).selectExpr("id % 45 AS k", "id AS n")


@pytest.fixture
def oracle(spark: SparkSession, stream: DataFrame) -> Callable[..., DataFrame]:
    """The stream joined by Spark with rows that a library has read."""

    def join(table: pa.Table, how: str = "inner") -> DataFrame:
        read = spark.createDataFrame(table, from_arrow_schema(table.schema))
        return stream.join(read, "k", how)

    return join


def flat(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


def read(spark: SparkSession, table: Any, names: list[str] | None = None) -> pa.Table:
    return open_table(spark, table).read(names).toArrow()


# -- rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [None, "region"])
def test_enrich_when_table_was_changed_many_times_then_finds_the_live_rows_only(
    spark: SparkSession,
    lake: Any,
    stream: DataFrame,
    oracle: Any,
    same_rows: Any,
    partition: str | None,
) -> None:
    lake.create(rows(0, 20), partition)
    changes: list[Callable[[], None]] = [
        lambda: lake.append(rows(20, 40)),
        lambda: lake.delete("k >= 5 and k < 12"),
        lambda: lake.replace(rows(30, 33, "updated "), "k >= 30 and k < 33"),
        lambda: lake.append(rows(5, 6, "twice ")),
    ]
    for number, change in enumerate(changes):
        change()
        expected = lake.scan()
        assert flat(read(spark, lake.path)) == flat(expected), f"after change {number}"
    keys = sorted([*range(5), *range(12, 40), 5])
    assert sorted(expected["k"].to_pylist()) == keys, "the library's scan is what it should be"
    files = sum(pq.read_metadata(path).num_rows for path in lake.path.rglob("*.parquet"))
    assert files > len(keys), "the folder holds dead rows too"
    same_rows(dovetail.enrich(stream, lake.path, on="k"), oracle(expected), "inner")
    few = dovetail.enrich(stream, lake.path, on="k", how="left", columns=["name", "at"])
    wanted = oracle(expected.select(["k", "name", "at"]), "left")
    same_rows(few, wanted, "two columns, left")


def test_read_when_types_are_many_then_they_are_those_that_spark_gives(
    spark: SparkSession, lake: Any
) -> None:
    more = {
        "blob": pa.array([b"\x00", None], pa.binary()),
        "tags": pa.array([["a", None], []], pa.list_(pa.string())),
        "pair": pa.array([{"x": 1, "y": "z"}, None]),
        "scores": pa.array([[("m", 1.5)], None], pa.map_(pa.string(), pa.float64())),
    }
    table = rows(6, 8)
    for name, column in more.items():
        table = table.append_column(name, column)
    lake.create(table)
    opened = open_table(spark, lake.path)
    assert opened.schema.simpleString() == (
        "struct<k:bigint,name:string,region:string,at:timestamp,local:timestamp_ntz,"
        "credit:decimal(12,2),since:date,blob:binary,tags:array<string>,"
        "pair:struct<x:bigint,y:string>,scores:map<string,double>>"
    )
    assert flat(opened.read().toArrow()) == flat(table)
    assert flat(opened.read(["scores", "k"]).toArrow()) == flat(table.select(["scores", "k"]))
    assert opened.rows() == 2


def test_read_when_iceberg_has_uuids_then_they_are_texts_as_spark_gives_them(
    spark: SparkSession, icebergs: Iceberg
) -> None:
    ids = [uuid.UUID(int=n * 2**100 + n) for n in range(5)]
    given = [None if n == 2 else id_.bytes for n, id_ in enumerate(ids)]
    icebergs.create(pa.table({"k": range(5), "id": pa.array(given, pa.uuid())}))
    found = read(spark, icebergs.path).sort_by("k")["id"].to_pylist()
    assert found == [None if n == 2 else str(id_) for n, id_ in enumerate(ids)]


def test_read_when_iceberg_columns_were_renamed_added_and_widened_then_old_files_are_right(
    spark: SparkSession, icebergs: Iceberg
) -> None:
    icebergs.create(pa.table({"k": pa.array([1, 2], pa.int32()), "old": ["a", "b"]}))
    with icebergs.table.update_schema() as update:
        update.rename_column("old", "new.name")
    with icebergs.table.update_schema() as update:
        update.update_column("k", LongType())
        update.add_column("old", StringType())
    icebergs.append(pa.table({"k": [3], "new.name": ["c"], "old": ["another"]}))
    expected = [(1, "a", None), (2, "b", None), (3, "c", "another")]
    assert flat(read(spark, icebergs.path)) == expected
    assert flat(read(spark, icebergs.path, ["old", "new.name"])) == sorted(
        [(old, name) for _, name, old in expected], key=repr
    )


def test_read_when_iceberg_has_position_deletes_then_the_rows_are_gone(
    spark: SparkSession, icebergs: Iceberg
) -> None:
    icebergs.create(rows(0, 30))
    icebergs.append(rows(30, 40))
    table = icebergs.table
    (first,) = (t.file for t in table.scan().plan_files() if t.file.record_count == 30)
    gone = pa.table({"file_path": [first.file_path] * 3, "pos": pa.array([0, 7, 29], pa.int64())})
    path = icebergs.path / "data" / "deletes.parquet"
    pq.write_table(gone, path)
    icebergs.add_file(path, DataFileContent.POSITION_DELETES)
    found = read(spark, icebergs.path)
    assert flat(found) == flat(icebergs.scan())
    assert sorted(found["k"].to_pylist()) == [k for k in range(40) if k not in (0, 7, 29)]


# -- what Spark writes ----------------------------------------------------------------------


FAR = [dt.datetime(1, 1, 2), dt.datetime(2024, 1, 1, 0, 0, 0, 7), dt.datetime(9999, 12, 31)]


@pytest.fixture
def sparks_files(spark: SparkSession, tmp_path: Path) -> Path:
    """Parquet files as Spark writes them: timestamps as INT96."""
    folder = tmp_path / "written by spark"
    at = ", ".join(f"(CAST({k} AS BIGINT), TIMESTAMP'{at}')" for k, at in enumerate(FAR))
    frame = spark.sql(f"SELECT * FROM VALUES {at} AS t(k, at)").coalesce(1)
    frame.write.parquet(str(folder))
    (file,) = folder.glob("*.parquet")
    assert pq.ParquetFile(file).schema.column(1).physical_type == "INT96"
    return folder


def utc(times: list[dt.datetime]) -> list[dt.datetime]:
    return [time.replace(tzinfo=dt.UTC) for time in times]


def edit_log(folder: Path, change: Callable[[str, Any], None]) -> None:
    """Change the actions in the first commit of a Delta table, before anyone has read it."""
    log = folder / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        for kind, content in action.items():
            change(kind, content)
    log.write_text("\n".join(map(json.dumps, actions)))


def deletion_vector(positions: list[int]) -> dict[str, Any]:
    """An inline deletion vector, as the Delta protocol describes it."""
    plain = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    data = struct.pack("<iqi", 1681511377, 1, 0) + BitMap(positions).serialize()
    data += bytes(-len(data) % 4)
    text = base64.b85encode(data).translate(bytes.maketrans(plain, z85)).decode()
    return {
        "storageType": "i",
        "pathOrInlineDv": text,
        "sizeInBytes": len(data),
        "cardinality": len(positions),
    }


def make_delta(folder: Path, features: list[str], **add: Any) -> None:
    """Make a Delta table of the files in a folder: the commit that Spark would have written."""
    fields = [("k", "long"), ("at", "timestamp")]
    parts = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields]
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol |= {"readerFeatures": features, "writerFeatures": features}
    metadata = {
        "id": "made-by-hand",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": parts}),
        "partitionColumns": [],
        "configuration": {},
    }
    actions: list[dict[str, Any]] = [{"protocol": protocol}, {"metaData": metadata}]
    for path in folder.glob("*.parquet"):
        file = {"path": path.name, "partitionValues": {}, "size": path.stat().st_size}
        actions.append({"add": {**file, "modificationTime": 0, "dataChange": True, **add}})
    (folder / "_delta_log").mkdir()
    (folder / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def test_read_when_spark_wrote_a_delta_table_then_far_dates_are_right(
    spark: SparkSession, sparks_files: Path
) -> None:
    make_delta(sparks_files, [])
    assert read(spark, sparks_files).sort_by("k")["at"].to_pylist() == utc(FAR)


def test_read_when_delta_has_deletion_vectors_then_the_rows_are_gone(
    spark: SparkSession, sparks_files: Path
) -> None:
    make_delta(sparks_files, ["deletionVectors"], deletionVector=deletion_vector([1]))
    found = read(spark, sparks_files).sort_by("k")
    assert found.to_pydict() == {"k": [0, 2], "at": utc([FAR[0], FAR[2]])}
    assert read(spark, sparks_files, ["at"])["at"].to_pylist() == utc([FAR[0], FAR[2]])


@pytest.mark.parametrize("reader_version", [2, 3])
def test_read_when_delta_maps_columns_then_they_have_the_names_of_the_table(
    spark: SparkSession, tmp_path: Path, reader_version: int
) -> None:
    table = tmp_path / "mapped"
    write_deltalake(table, pa.table({"c1": [1, 2], "c2": ["a", "b"]}))
    names = {"c1": "k", "c2": 'the "name".x'}

    def change(kind: str, content: Any) -> None:
        if kind == "protocol":
            content.update(minReaderVersion=reader_version, minWriterVersion=5)
            if reader_version == 3:
                features = {"readerFeatures": ["columnMapping"]}
                features["writerFeatures"] = ["columnMapping"]
                content.update(minWriterVersion=7, **features)
        if kind == "metaData":
            mode = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
            content["configuration"] = mode
            schema = json.loads(content["schemaString"])
            for number, field in enumerate(schema["fields"], 1):
                field["metadata"] = {
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": field["name"],
                }
                field["name"] = names[field["name"]]
            content["schemaString"] = json.dumps(schema)

    edit_log(table, change)
    expected = {"k": [1, 2], 'the "name".x': ["a", "b"]}
    assert read(spark, table).sort_by("k").to_pydict() == expected


def test_read_when_iceberg_has_files_of_spark_then_refuses_dates_that_would_be_wrong(
    spark: SparkSession, sparks_files: Path, icebergs: Iceberg
) -> None:
    schema = pa.schema({"k": pa.int64(), "at": pa.timestamp("us", "UTC")})
    near = sparks_files.with_name("near")
    spark.read.parquet(str(sparks_files)).where("k = 1").coalesce(1).write.parquet(str(near))
    icebergs.declare(schema)
    with icebergs.table.transaction() as change:  # for files that know no ids of columns
        names = icebergs.table.schema().name_mapping.model_dump_json()
        change.set_properties({"schema.name-mapping.default": names})
    icebergs.add_file(*near.glob("*.parquet"))
    assert read(spark, icebergs.path).to_pydict() == {"k": [1], "at": utc(FAR[1:2])}
    icebergs.add_file(*sparks_files.glob("*.parquet"))
    with pytest.raises(errors.TableUnreadableError, match=r"INT96 timestamps in at .*rewrite"):
        dovetail.enrich(spark.range(3), icebergs.path, on=[("id", "k")])


# -- how a table is given -------------------------------------------------------------------


def test_table_when_given_as_path_or_uri_then_is_recognised(
    spark: SparkSession, lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create(rows(0, 9))
    lake.delete("k = 4")
    expected = flat(lake.scan())
    monkeypatch.chdir(lake.path.parent)
    path = str(lake.path)
    for given in (lake.path, path, f"{path}/", f"file:{path}", f"file://{path}"):
        assert flat(read(spark, given)) == expected, given
    for given in (lake.path.as_uri(), lake.path.name, f"./{lake.path.name}"):
        assert flat(read(spark, given)) == expected, given


def test_table_when_given_by_its_metadata_file_then_is_as_it_was_then(
    spark: SparkSession, icebergs: Iceberg
) -> None:
    icebergs.create(rows(0, 9))
    file = icebergs.table.metadata_location
    before = flat(icebergs.scan())
    icebergs.delete("k = 4")
    assert flat(read(spark, file)) == flat(read(spark, file.removeprefix("file://"))) == before
    assert flat(read(spark, icebergs.path)) == flat(icebergs.scan()) != before


def test_table_when_only_an_iceberg_catalogue_knows_the_name_then_is_found_there(
    spark: SparkSession, icebergs: Iceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    icebergs.create(rows(0, 9))
    name = "lake.sales.customers"
    with pytest.raises(errors.ArgumentError, match=r"Nor is pyiceberg configured .*'lake'"):
        read(spark, name)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", icebergs.uri)
    assert (
        flat(read(spark, name))
        == flat(icebergs.scan())
        == flat(read(spark, "lake.`sales`.customers"))
    )
    with pytest.raises(
        errors.ArgumentError, match=r"neither this session nor the catalogue 'lake'"
    ):
        read(spark, "lake.sales.nothing")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{icebergs.folder}/none/x.db")
    with pytest.raises(errors.TableUnreadableError, match=f"{name}' cannot be read"):
        read(spark, name)


def test_table_when_parquet_or_known_to_spark_then_is_read_by_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "plain.parquet files"
    (folder / "metadata").mkdir(parents=True)
    pq.write_table(pa.table({"k": [1]}), folder / "a.parquet")
    assert read(spark, folder).to_pydict() == {"k": [1]}
    opened = open_table(spark, folder)
    assert str(opened.version()).count("a.parquet") == 1
    spark.range(3).createOrReplaceTempView("lakehouse_view")
    assert read(spark, "lakehouse_view").to_pydict() == {"id": [0, 1, 2]}
    spark.catalog.dropTempView("lakehouse_view")


def test_job_file_when_table_is_a_lakehouse_path_then_is_enriched_from_it(
    spark: SparkSession, lake: Any, stream: DataFrame, oracle: Any, same_rows: Any, tmp_path: Path
) -> None:
    lake.create(rows(0, 30))
    lake.delete("k < 10")
    stream.write.parquet(str(tmp_path / "input"))
    file = tmp_path / "job.toml"
    file.write_text(
        'mode = "batch"\n[stream]\nformat = "parquet"\npath = "input"\n'
        f'[enrich]\ntable = "{lake.path.name}"\non = "k"\nhow = "left"\n'
        '[sink]\nformat = "parquet"\npath = "output"\n'
    )
    job = read_job(file)
    execution.write(job, execution.result(spark, job))
    output = spark.read.parquet(str(tmp_path / "output"))
    same_rows(output, oracle(lake.scan(), "left"), "job file")
    _, sample = execution.sample(spark, job, 5)
    assert sample.num_rows == 5
    assert pc.min(sample["k"]).as_py() >= 10


# -- snapshots ------------------------------------------------------------------------------


def test_open_table_when_another_snapshot_is_committed_then_keeps_the_one_it_has(
    spark: SparkSession, lake: Any
) -> None:
    lake.create(rows(0, 9))
    opened, before = open_table(spark, lake.path), flat(lake.scan())
    frame = opened.read()
    lake.delete("k < 5")
    lake.append(rows(20, 25))
    assert flat(frame.toArrow()) == flat(opened.read().toArrow()) == before
    assert open_table(spark, lake.path).version() != opened.version()


def test_refresh_when_snapshot_changed_then_restages_and_else_not(
    lake: Any, stream: DataFrame, oracle: Any, same_rows: Any, tmp_path: Path
) -> None:
    state = tmp_path / "state"

    def check(about: str, table: pa.Table) -> None:
        found = dovetail.enrich(stream, lake.path, on="k", how="left", state=state)
        same_rows(found, oracle(table, "left"), about)

    lake.create(rows(0, 20))
    before = lake.scan()
    check("first", before)
    for path in lake.path.rglob("*.parquet"):
        os.utime(path)
    (lake.path / "part-of-no-snapshot.parquet").write_bytes(b"")
    assert dovetail.refresh(state).version == "v000001", "the snapshot is the same"
    lake.replace(rows(5, 8, "updated "), "k >= 5 and k < 8")
    lake.delete("k = 9")
    check("not refreshed yet", before)
    assert dovetail.refresh(state).version == "v000002"
    assert dovetail.refresh(state).version == "v000002"
    check("refreshed", lake.scan())
    shutil.rmtree(lake.path)
    with pytest.raises(errors.ArgumentError, match="PATH_NOT_FOUND"):
        dovetail.refresh(state)


def test_refresh_when_delta_table_was_made_anew_then_restages_though_the_version_is_the_same(
    bench: Any, tmp_path: Path
) -> None:
    lake = Delta(tmp_path)
    lake.create(rows(0, 20))
    bench.keyed("stream", range(40), files=1)
    bench.enrich(lake.path)
    shutil.rmtree(lake.path)
    lake.create(rows(10, 30))
    assert DeltaTable(lake.path).version() == 0
    assert dovetail.refresh(bench.state).version == "v000002"


# -- what goes wrong ------------------------------------------------------------------------


def test_enrich_when_iceberg_table_has_no_snapshot_then_it_is_empty(
    icebergs: Iceberg, stream: DataFrame, bench: Any
) -> None:
    icebergs.declare(rows(0, 1).schema)
    found = dovetail.enrich(stream, icebergs.path, on="k", how="left", state=bench.state)
    assert found.count() == 60
    assert found.where("name IS NULL AND at IS NULL").count() == 60
    assert dovetail.refresh(bench.state).version == "v000001"
    icebergs.append(rows(0, 3))
    assert dovetail.refresh(bench.state).version == "v000002"


def test_enrich_when_delta_table_is_empty_then_finds_nothing(
    stream: DataFrame, tmp_path: Path
) -> None:
    lake = Delta(tmp_path)
    lake.create(rows(0, 3))
    lake.delete("k >= 0")
    assert dovetail.enrich(stream, lake.path, on="k", how="anti").count() == 60


def test_enrich_when_package_is_missing_then_says_how_to_install_it(
    lake: Any, stream: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create(rows(0, 3))
    delta = isinstance(lake, Delta)
    package, extra = ("deltalake", "delta") if delta else ("pyiceberg", "iceberg")
    for name in [module for module in sys.modules if module.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        errors.ArgumentError, match=rf'{package}.*pip install "dovetail\[{extra}\]"'
    ):
        dovetail.enrich(stream, lake.path, on="k")
    if not delta:
        with pytest.raises(errors.ArgumentError, match=r"neither .*dovetail\[iceberg\]"):
            dovetail.enrich(stream, "lake.sales.customers", on="k")


def test_enrich_when_data_file_is_gone_then_says_so_and_stages_nothing(
    lake: Any, stream: DataFrame, bench: Any
) -> None:
    lake.create(rows(0, 3))
    for path in lake.path.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(errors.TableUnreadableError) as raised:
        dovetail.enrich(stream, lake.path, on="k", state=bench.state)
    bench.says(str(raised.value), "my table.v1", "cannot be read", "vacuumed")
    assert not (bench.state / "table" / "current").exists()


def test_enrich_when_metadata_is_damaged_then_says_so(
    lake: Any, stream: DataFrame, bench: Any
) -> None:
    lake.create(rows(0, 3))
    for path in [*lake.path.rglob("*.json")]:
        path.write_text('{"half a')
    with pytest.raises(errors.TableUnreadableError) as raised:
        dovetail.enrich(stream, lake.path, on="k", state=bench.state)
    bench.says(str(raised.value), "my table.v1", "cannot be read", "Check it")
    assert len(str(raised.value).splitlines()) == 1
    assert not bench.state.exists()


def test_table_when_two_iceberg_writers_left_the_same_number_then_does_not_guess(
    spark: SparkSession, icebergs: Iceberg
) -> None:
    icebergs.create(rows(0, 3))
    folder = icebergs.path / "metadata"
    newest = max(folder.glob("*.metadata.json"))
    other = newest.with_name(f"{newest.name[:6]}another.metadata.json")
    shutil.copy(newest, other)
    with pytest.raises(errors.ArgumentError, match=r"several metadata files.*catalog\.namespace"):
        open_table(spark, icebergs.path)
    (folder / "version-hint.text").write_text(other.name.removesuffix(".metadata.json"))
    assert open_table(spark, icebergs.path).rows() == 3
    for path in folder.glob("*.metadata.json"):
        path.rename(path.with_name(f"x{path.name}"))
    with pytest.raises(errors.ArgumentError, match="no metadata file of it has a number"):
        open_table(spark, icebergs.path)
