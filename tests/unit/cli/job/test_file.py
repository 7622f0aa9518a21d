"""Job files: what they may say, and what is said about mistakes in them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from dovetail.cli.job.file import Job, read_job
from dovetail.errors import JobFileError

REPOSITORY = Path(__file__).resolve().parents[4]
GOOD = """
[left]
format = "parquet"
path = "orders"

[right]
format = "csv"
path = "payments"
schema = "id BIGINT, paid DOUBLE"

[join]
on = "id"

[sink]
format = "parquet"
path = "out"
checkpoint = "ckpt"
"""
ENRICH = """
[stream]
format = "parquet"
path = "orders"

[enrich]
table = "customers"
on = "id"

[sink]
format = "parquet"
path = "out"
checkpoint = "ckpt"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("orders", "payments"):
        (tmp_path / name).mkdir()
    return tmp_path


def read(folder: Path, text: str) -> Job:
    file = folder / "job.toml"
    file.write_text(text)
    return read_job(file)


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(JobFileError) as raised:
        read(folder, text)
    message = str(raised.value)
    assert message.startswith(str(folder / "job.toml"))
    return message.removeprefix(f"{folder / 'job.toml'}").removeprefix(": ")


# --- what may stand in a file -------------------------------------------------------------------


def test_read_when_only_the_needed_keys_are_there_then_fills_in_the_rest(folder: Path) -> None:
    job = read(folder, GOOD)
    assert job.streaming
    assert (job.spark.master, job.spark.app_name, job.spark.conf) == ("local[*]", "job", {})
    assert job.inputs["left"].path == str(folder / "orders")
    assert job.inputs["right"].schema == "id BIGINT, paid DOUBLE"
    assert job.options["state"] == f"{folder}/ckpt/dovetail/join"
    assert job.options.keys() == {"on", "state"}  # the rest is left to the call
    assert job.sink.path == str(folder / "out")
    assert job.trigger == {}


def test_read_when_the_shipped_example_is_read_then_all_is_known(
    folder: Path,
) -> None:
    text = (REPOSITORY / "examples" / "job.toml").read_text()
    for name in ("orders", "shipments"):
        (folder / "data" / name).mkdir(parents=True)
    job = read(folder, text)
    assert job.options["on"] == [("order_id", "ordered")]
    assert job.options["memory"] == "512KB"
    assert job.trigger == {"availableNow": True}
    assert job.spark.conf["spark.sql.shuffle.partitions"] == "2"


@pytest.mark.parametrize(
    "line",
    [
        'schema = "order_id BIGINT, customer STRING, amount DOUBLE"',
        'watermark = { column = "shipped_at", delay = "10 minutes" }',
        "within = 0.05",
        'within = "5 minutes"',
        'state = "ckpt/join"',
        "slice_ms = 250",
        'mode = "append"',
        'processing_time = "5 seconds"',
        "once = true",
    ],
)
def test_read_when_a_line_of_the_example_is_uncommented_then_it_is_valid(
    line: str, folder: Path
) -> None:
    text = (REPOSITORY / "examples" / "job.toml").read_text()
    assert f"# {line}" in text
    for name in ("orders", "shipments"):
        (folder / "data" / name).mkdir(parents=True)
    if line.startswith(("processing_time", "once")):
        text = text.replace("available_now = true", "")
    read(folder, text.replace(f"# {line}", line, 1))


def test_read_when_a_stream_is_enriched_then_fills_in_the_rest(folder: Path) -> None:
    job = read(folder, ENRICH)
    assert job.inputs["stream"].path == str(folder / "orders")
    assert job.options["table"] == "customers"  # nothing is there, so it is a name
    assert job.options == {
        "table": "customers",
        "on": "id",
        "state": f"{folder}/ckpt/dovetail/enrich",
    }


def test_read_when_all_of_enrich_is_given_then_is_understood(folder: Path) -> None:
    text = ENRICH.replace(
        'on = "id"',
        'on = [["id", "key"]]\nhow = "anti"\nmemory = "2MB"\nstate = "kept"\nalgorithm = "ssbj"\n'
        'columns = ["a", "b"]\nordered = true\nrefresh = "5 minutes"\npartitions = 3\n'
        "slice_ms = 99",
    )
    job = read(folder, text)
    assert job.options == {
        "table": "customers",
        "on": [("id", "key")],
        "how": "anti",
        "memory": "2MB",
        "state": str(folder / "kept"),
        "algorithm": "ssbj",
        "columns": ("a", "b"),
        "ordered": True,
        "refresh": dt.timedelta(minutes=5),
        "partitions": 3,
        "slice_ms": 99,
    }


def test_read_when_an_enrichment_goes_by_its_history_then_the_stream_has_to_be_files(
    folder: Path,
) -> None:
    plain, asked = read(folder, ENRICH), ENRICH.replace('on = "id"', 'on = "id"\nhistory = true')
    job = read(folder, asked)
    assert (plain.history, job.history) == (False, True)
    assert job.options == plain.options
    said = complaint(folder, asked.replace('"parquet"', '"rate"', 1))
    assert "enrich.history takes a sample of files, but stream.format is 'rate'" in said


def test_read_when_an_enrichment_may_leave_rows_out_then_all_of_it_is_read(folder: Path) -> None:
    more = 'on = "id"\nshed = "topw"\nshed_to = "left-out"\nlatency = "250ms"'
    job = read(folder, ENRICH.replace('on = "id"', more))
    assert (job.options["shed"], job.options["shed_to"]) == ("topw", str(folder / "left-out"))
    assert job.options["latency"] == dt.timedelta(milliseconds=250)


@pytest.mark.parametrize(
    ("lines", "mode", "said"),
    [
        ('shed = "some"', "stream", "enrich.shed is 'some'"),
        ('shed_to = "left-out"', "stream", "enrich.shed_to needs shed"),
        ('latency = "soon"', "stream", "enrich.latency has to be a span of time"),
        ('shed = "keep"', "batch", 'enrich.shed makes no sense with mode = "batch"'),
        ('latency = "5 s"', "batch", 'enrich.latency makes no sense with mode = "batch"'),
    ],
)
def test_read_when_shedding_or_latency_is_wrong_then_says_so(
    folder: Path, lines: str, mode: str, said: str
) -> None:
    text = ENRICH.replace('on = "id"', f'on = "id"\n{lines}')
    if mode == "batch":
        text = 'mode = "batch"\n' + text.replace('checkpoint = "ckpt"', "")
    assert said in complaint(folder, text)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("payments", "{folder}/payments"),  # is there
        ("./payments", "{folder}/payments"),
        ("pay*/", "{folder}/pay*"),
        ("sales.customers", "sales.customers"),
        ("s3a://bucket/customers", "s3a://bucket/customers"),
    ],
)
def test_read_when_a_table_is_a_path_or_a_name_then_they_are_told_apart(
    written: str, meant: str, folder: Path
) -> None:
    job = read(folder, ENRICH.replace('"customers"', f'"{written}"'))
    assert job.options["table"] == meant.format(folder=folder)


def test_read_when_the_shipped_enrichment_is_read_then_all_is_known(folder: Path) -> None:
    text = (REPOSITORY / "examples" / "enrich.toml").read_text()
    for name in ("orders", "customers"):
        (folder / "data" / name).mkdir(parents=True)
    job = read(folder, text)
    assert job.options["table"] == str(folder / "data" / "customers")
    assert (job.options["how"], job.options["on"]) == ("left", [("customer", "name")])
    for line in (
        'select = ["order_id", "upper(customer) AS customer"]',
        "ordered = true",
        'refresh = "5 minutes"',
        'state = "ckpt/enrich"',
        "slice_ms = 250",
        'latency = "5 seconds"',
        'shed = "topw"',
        "history = true",
    ):
        assert f"# {line}" in text
        read(folder, text.replace(f"# {line}", line, 1))


def test_read_when_a_batch_is_enriched_then_state_is_as_given(folder: Path) -> None:
    text = 'mode = "batch"\n' + ENRICH.replace('checkpoint = "ckpt"', "")
    job = read(folder, text)
    assert "state" not in job.options
    kept = read(folder, text.replace('on = "id"', 'on = "id"\nstate = "kept"'))
    assert kept.options["state"] == str(folder / "kept")
    refreshed = text.replace('on = "id"', 'on = "id"\nrefresh = "1 hour"')
    assert 'enrich.refresh makes no sense with mode = "batch"' in complaint(folder, refreshed)


def test_read_when_options_are_given_then_spark_gets_texts(folder: Path) -> None:
    text = GOOD + '[left.options]\nmaxFilesPerTrigger = 1\nheader = true\nmode = "x"\nshare = 0.5\n'
    assert read(folder, text).inputs["left"].options == {
        "maxFilesPerTrigger": "1",
        "header": "true",
        "mode": "x",
        "share": "0.5",
    }


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"id"', "id"),
        ('["a", "b"]', ["a", "b"]),
        ('[["a", "b"], "c"]', [("a", "b"), "c"]),
    ],
)
def test_read_when_keys_are_written_in_any_way_then_they_are_understood(
    written: str, meant: object, folder: Path
) -> None:
    assert read(folder, GOOD.replace('on = "id"', f"on = {written}")).options["on"] == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("5", 5),
        ("0.25", 0.25),
        ('"5 minutes"', dt.timedelta(minutes=5)),
        ('"1 hour 30 min"', dt.timedelta(minutes=90)),
        ('"250ms"', dt.timedelta(milliseconds=250)),
        ('"1.5 days"', dt.timedelta(hours=36)),
    ],
)
def test_read_when_within_is_a_number_or_a_span_then_it_is_understood(
    written: str, meant: object, folder: Path
) -> None:
    job = read(folder, GOOD.replace('on = "id"', f'on = "id"\nwithin = {written}'))
    assert job.options["within"] == meant


def test_read_when_paths_are_urls_then_they_are_left_alone(folder: Path) -> None:
    text = GOOD.replace('path = "orders"', 'path = "s3a://bucket/orders"')
    assert read(folder, text).inputs["left"].path == "s3a://bucket/orders"


def test_read_when_a_path_is_a_pattern_then_it_need_not_exist_as_such(folder: Path) -> None:
    text = GOOD.replace('path = "orders"', 'path = "orders/*.parquet"')
    assert read(folder, text).inputs["left"].path == f"{folder}/orders/*.parquet"


def test_read_when_the_mode_is_batch_then_there_is_no_state(folder: Path) -> None:
    text = 'mode = "batch"\n' + GOOD.replace('checkpoint = "ckpt"', 'mode = "overwrite"')
    job = read(folder, text)
    assert not job.streaming
    assert "state" not in job.options
    assert job.sink.mode == "overwrite"


@pytest.mark.parametrize(
    ("line", "trigger"),
    [
        ("available_now = true", {"availableNow": True}),
        ("once = true", {"once": True}),
        ('processing_time = "5 seconds"', {"processingTime": "5 seconds"}),
    ],
)
def test_read_when_a_trigger_is_given_then_it_is_taken(
    line: str, trigger: dict[str, object], folder: Path
) -> None:
    assert read(folder, GOOD + f"[trigger]\n{line}\n").trigger == trigger


# --- mistakes -----------------------------------------------------------------------------------


def test_read_when_there_is_no_file_then_says_so(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"there is no job file .*nowhere\.toml"):
        read_job(tmp_path / "nowhere.toml")


def test_read_when_the_file_is_a_directory_then_says_so(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="cannot be read: Is a directory"):
        read_job(tmp_path)


@pytest.mark.parametrize("text", ["[left", "a = = 1", "a = 1\na = 2"])
def test_read_when_it_is_not_toml_then_says_where(text: str, folder: Path) -> None:
    assert "is not valid TOML" in complaint(folder, text)
    assert "(at " in complaint(folder, text)


@pytest.mark.parametrize("table", ["left", "right", "join", "sink"])
def test_read_when_a_table_is_missing_then_names_it(table: str, folder: Path) -> None:
    start = GOOD.index(f"[{table}]")
    end = GOOD.find("\n[", start)
    text = GOOD[:start] + (GOOD[end:] if end > 0 else "")
    message = complaint(folder, text)
    assert message.startswith(f"the table [{table}] is missing.")
    assert "spark, left, right, join, sink, trigger" in message


MISTAKES = {
    "unknown table": ("[left]", "[lefty]\n[left]", "lefty is not known; did you mean 'left'?"),
    "unknown key": ('on = "id"', 'on = "id"\nmemmory = 1', "did you mean 'memory'?"),
    "unknown key, its list": (
        'on = "id"',
        'on = "id"\nxyz = 1',
        "Keys: on, where, within, memory, state",
    ),
    "unknown mode": ("[left]", 'mode = "steam"\n[left]', "did you mean 'stream'? Allowed: stream"),
    "no format": ('format = "csv"', "", "right.format is missing; write for example"),
    "no path": ('path = "orders"', "", "left.path is missing; a parquet source"),
    "no such path": ('"orders"', '"ordres"', "/ordres, which does not exist."),
    "no schema": ("schema =", "# schema =", "right.schema is missing; a csv stream"),
    "format of another type": ('format = "csv"', "format = 3", "right.format is a number (3)"),
    "empty text": ('format = "csv"', 'format = " "', "has to be a text in quotes"),
    "no keys": ('on = "id"', "", 'join.on is missing; write a name ("id")'),
    "keys of another type": ('on = "id"', "on = 3", "join.on is a number (3)"),
    "empty keys": ('on = "id"', "on = []", "join.on is a list ([])"),
    "triple": ('on = "id"', 'on = [["a", "b", "c"]]', "or pairs"),
    "within": ('on = "id"', 'on = "id"\nwithin = true', "join.within is a boolean (True)"),
    "within, bad span": ('on = "id"', 'on = "id"\nwithin = "soon"', "not a span of time: 'soon'"),
    "within, bad unit": ('on = "id"', 'on = "id"\nwithin = "5 moons"', "units are microsecond"),
    "memory": (
        'on = "id"',
        'on = "id"\nmemory = "lots"',
        "memory cannot be: not a size: 'lots'",
    ),
    "memory, list": ('on = "id"', 'on = "id"\nmemory = [1]', "a size such as"),
    "algorithm": ('on = "id"', 'on = "id"\nalgorithm = "xjion"', "did you mean 'xjoin'? Allowed"),
    "partitions": ('on = "id"', 'on = "id"\npartitions = 0', "a whole number of 1 or more"),
    "partitions, text": ('on = "id"', 'on = "id"\npartitions = "2"', "join.partitions is a text"),
    "slice": ('on = "id"', 'on = "id"\nslice_ms = 0.5', "join.slice_ms is a number (0.5)"),
    "sink path": ('path = "out"', "", "sink.path is missing; a parquet sink"),
    "sink mode": ('path = "out"', 'path = "out"\nmode = "overwrite"', "Allowed: append, update."),
    "sink table": ('path = "out"', 'path = "out"\ntable = "t"', 'goes with format = "table" only'),
    "no table": ('format = "parquet"\npath = "out"', 'format = "table"', "sink.table is missing"),
    "no checkpoint": ('checkpoint = "ckpt"', "", "sink.checkpoint is missing"),
    "two triggers": (
        "[left]",
        "[trigger]\nonce = true\navailable_now = true\n[left]",
        "cannot stand beside",
    ),
    "trigger of another type": ("[left]", "[trigger]\nonce = 1\n[left]", "has to be true or false"),
    "trigger interval": (
        "[left]",
        '[trigger]\nprocessing_time = "often"\n[left]',
        "trigger.processing_time has to be a span of time",
    ),
    "not a table": (
        "[left]",
        "spark = 3\n[left]",
        "spark is a number; write it as a table, [spark]",
    ),
    "conf": ("[left]", "[spark.conf]\nspark.x = 1\n[left]", "(put the dotted name in quotes)"),
    "conf list": ("[left]", '[spark.conf]\n"a" = [1]\n[left]', "spark.conf.a is a list"),
    "select of another type": ("[right]", 'select = "a"\n[right]', "left.select is a text ('a')"),
    "watermark": ("[right]", 'watermark = "1 hour"\n[right]', "left.watermark is a text"),
    "watermark column": (
        "[right]",
        'watermark = { delay = "1 hour" }\n[right]',
        "left.watermark.column is missing",
    ),
    "watermark delay": (
        "[right]",
        'watermark = { column = "t", delay = "x" }\n[right]',
        "left.watermark.delay has to be a span of time",
    ),
    "watermark key": (
        "[right]",
        'watermark = { colum = "t" }\n[right]',
        "left.watermark.colum is not known; did you mean 'column'?",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_read_when_there_is_a_mistake_then_names_key_and_remedy(mistake: str, folder: Path) -> None:
    before, after, said = MISTAKES[mistake]
    text = GOOD.replace(before, after, 1)
    if mistake == "no table":
        text = GOOD[: GOOD.index("[sink]")] + '[sink]\nformat = "table"\ncheckpoint = "ckpt"\n'
    assert text != GOOD
    assert said in complaint(folder, text)


ENRICH_MISTAKES = {
    "unknown key": ('on = "id"', 'on = "id"\nrefesh = "x"', "did you mean 'refresh'?"),
    "within": ('on = "id"', 'on = "id"\nwithin = 1', "enrich.within is not known. Keys: table, on"),
    "no table": ('table = "customers"', "", "enrich.table is missing; write for example table ="),
    "no such table": ('"customers"', '"data/custmers"', "/data/custmers, which does not exist."),
    "how": ('on = "id"', 'on = "id"\nhow = "outer"', "Allowed: inner, left, semi, anti."),
    "algorithm": ('on = "id"', 'on = "id"\nalgorithm = "xjoin"', "Allowed: auto, meshjoin"),
    "columns": ('on = "id"', 'on = "id"\ncolumns = "a"', "enrich.columns is a text ('a')"),
    "ordered": ('on = "id"', 'on = "id"\nordered = "yes"', "enrich.ordered is a text ('yes')"),
    "refresh": ('on = "id"', 'on = "id"\nrefresh = "often"', "enrich.refresh has to be a span"),
    "history": ('on = "id"', 'on = "id"\nhistory = "yes"', "enrich.history is a text ('yes')"),
    "both": ("[sink]", "[join]\non = 1\n[sink]", "enrich cannot stand beside join"),
    "another input": ("[sink]", "[left]\n[sink]", "left does not go with [enrich]"),
    "no stream": ("[stream]", "[spark.conf]", "the table [stream] is missing. Tables: spark, st"),
    "no enrich": ("[enrich]", "[spark.conf]", "the table [enrich] is missing. Tables: spark, st"),
}


@pytest.mark.parametrize("mistake", ENRICH_MISTAKES)
def test_read_when_an_enrichment_has_a_mistake_then_names_key_and_remedy(
    mistake: str, folder: Path
) -> None:
    before, after, said = ENRICH_MISTAKES[mistake]
    assert said in complaint(folder, ENRICH.replace(before, after, 1))


def test_read_when_a_join_has_a_stream_then_says_that_it_does_not_belong(folder: Path) -> None:
    assert "stream does not go with [join]" in complaint(folder, GOOD + '[stream]\nformat = "x"\n')


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("[trigger]\nonce = true\n", 'trigger makes no sense with mode = "batch"'),
        ("", 'sink.checkpoint makes no sense with mode = "batch"'),
    ],
)
def test_read_when_a_batch_job_has_what_only_streams_have_then_says_so(
    extra: str, said: str, folder: Path
) -> None:
    text = 'mode = "batch"\n' + (GOOD.replace('checkpoint = "ckpt"', "") if extra else GOOD) + extra
    assert said in complaint(folder, text)
