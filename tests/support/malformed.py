"""Arrow data that no writer makes, by hand and by chance, given to what must refuse it.

    python -m support.malformed rows 100000 7

changes streams of rows, or messages between sites (`messages`), at random places, and lets a site
take them in. Run as a process of its own: a batch that is followed into foreign memory ends it.
Each case follows from the seed and its number alone, which are printed before it could crash.
"""

import faulthandler
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from dovetail.errors import DovetailError
from dovetail.multisite.encoded import batch_bytes
from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.events import Event, What
from dovetail.multisite.live.machine import Machine
from dovetail.multisite.live.server import rows_put
from dovetail.multisite.messages import decode, encode
from dovetail.multisite.plan import Algorithm, Plan, Step
from dovetail.multisite.query import Query, Stream
from dovetail.multisite.windows import TimeWindow

_FAR = 2**31 - 2
#: offsets of strings whose last one is within the data, which is all that a writer looks at
POINTING_ELSEWHERE = {"far beyond": [0, _FAR, _FAR, 4], "just beyond": [0, 65536, 4, 4]}
_MOST_BYTES = 1 << 20
_TAU = 10
_EXTREMES = (0, 1, -1, 127, 255, 65535, 1 << 20, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))


# --- by hand ------------------------------------------------------------------------------------


def strings(offsets: list[int], data: bytes = b"abcd") -> pa.Array:
    """Strings with these offsets into so little data."""
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def not_utf8(length: int) -> pa.Array:
    return strings(list(range(length + 1)), b"\xff" * length)


def out_of_dictionary(length: int) -> pa.Array:
    """Values that are not in their dictionary."""
    indices = pa.array(np.full(length, 1000), pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)


def beyond_their_child(length: int) -> pa.Array:
    """Lists of values that their child does not have; only the last list ends within it."""
    child = pa.array([1, 2, 3])
    offsets = np.arange(length + 1, dtype=np.int32) * 1000
    offsets[-1] = 3
    buffers = [None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(pa.int64()), length, buffers, children=[child])


# --- by chance ----------------------------------------------------------------------------------


def changed(data: bytes, rng: np.random.Generator) -> bytes:
    """The same bytes, a few of them others: one, a number of four or eight, or some moved."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(found)))
        match int(rng.integers(6)):
            case 0:
                found[at] ^= 1 << int(rng.integers(8))
            case 1:
                found[at] = int(rng.integers(256))
            case 2 | 3:
                width = int(rng.choice([4, 8]))
                at -= at % width
                value = int(rng.choice(_EXTREMES)) % (1 << 8 * width)
                found[at : at + width] = value.to_bytes(width, "little")
            case 4:
                other, length = int(rng.integers(len(found))), int(rng.integers(1, 33))
                found[at : at + length] = found[other : other + length]
            case _:
                del found[at : at + int(rng.integers(1, 17))]
        if not found:
            return b""
    return bytes(found)


def _streams() -> tuple[Stream, list[bytes]]:
    """A stream with columns of many types, and some of its rows in several encodings."""
    rng = np.random.default_rng(3)
    count = 40
    texts = pa.array([None if i % 7 == 0 else f"text {i % 5}" for i in range(count)])
    numbers = pa.array(rng.integers(0, 9, count), mask=rng.random(count) < 0.1)
    rows = pa.record_batch(
        {
            "ts": np.sort(rng.integers(0, 5 * _TAU, count)),
            "key": texts,
            "number": numbers,
            "flag": pa.array([i % 3 == 0 for i in range(count)]),
            "large": texts.cast(pa.large_string()),
            "view": texts.cast(pa.string_view()),
            "word": texts.dictionary_encode(),
            "list": pa.array([[i, None] * (i % 3) for i in range(count)]),
            "pair": pa.array([{"a": i, "b": str(i)} for i in range(count)]),
            "map": pa.array([[("k", i)] for i in range(count)], pa.map_(pa.string(), pa.int64())),
            "three": pa.array([[1, 2, i] for i in range(count)], pa.list_(pa.int32(), 3)),
            "runs": pa.RunEndEncodedArray.from_arrays([count - 9, count], ["x", "y"]),
            "none": pa.nulls(count),
            "price": pa.array(range(count)).cast(pa.decimal128(30, 2)),
        }
    )
    stream = Stream("A", rows.schema, TimeWindow(30))
    written = [batch_bytes(rows)]
    for compression in ("zstd", "lz4"):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            writer.write_batch(rows)
        written.append(sink.getvalue().to_pybytes())
    return stream, written


def _query() -> Query:
    schema = pa.schema([("ts", pa.int64()), ("a", pa.int64()), ("b", pa.string())])
    streams = tuple(Stream(name, schema, TimeWindow(25)) for name in "AB")
    return Query(streams, (("A.a", "B.a"), ("A.b", "B.b")), _TAU, 5)


def _deployment(algorithm: Algorithm) -> Deployment:
    query = _query()
    plan = Plan(query, {"A": [Step("B", algorithm)], "B": [Step("A", algorithm)]})
    addresses = dict.fromkeys("AB", "grpc://127.0.0.1:1")
    return Deployment("q", plan, addresses, clock="rows", replan_every=2)


def _fed(machine: Machine, interval: int) -> list[bytes]:
    """Let an interval of made-up rows end; what is sent."""
    rng = np.random.default_rng([interval, ord(machine.host)])
    times = np.sort(rng.integers((interval - 1) * _TAU, interval * _TAU, 12))
    keys = rng.integers(0, 6, 12)
    texts = pa.array([f"b{key % 3}" for key in keys])
    rows = pa.RecordBatch.from_arrays(
        [pa.array(times), pa.array(keys), texts], schema=_query().streams[0].schema
    )
    machine.apply(Event(What.INPUT, 0, {"stream": machine.host}), rows)
    now = machine.deployment.query.tick_time(interval)
    machine.apply(Event(What.TICK, now, {"stream": machine.host}))
    return [body for _, _, body in machine.take().messages]


def _talk(deployment: Deployment) -> list[tuple[str, bytes]]:
    """What two hosts send each other in a few intervals, with who gets it."""
    machines = {host: Machine(deployment, host) for host in "AB"}
    heard: list[tuple[str, bytes]] = []
    for interval in range(1, 5):
        waiting = [(other(h), body) for h, m in machines.items() for body in _fed(m, interval)]
        while waiting:
            to, body = waiting.pop(0)
            heard.append((to, body))
            machines[to].apply(Event(What.MESSAGE, 0, {"peer": other(to), "seq": 1}, body))
            waiting += [(other(to), more) for _, _, more in machines[to].take().messages]
    return heard


def other(host: str) -> str:
    return "B" if host == "A" else "A"


# --- what takes them in -------------------------------------------------------------------------


def _rows(seed: int) -> Callable[[int], str]:
    """Takes changed rows in as a put; whatever is let through is looked at, every value."""
    stream, written = _streams()

    def run(number: int) -> str:
        rng = np.random.default_rng([seed, number])
        data = changed(written[int(rng.integers(len(written)))], rng)
        try:
            rows = rows_put(pa.py_buffer(data), stream, _MOST_BYTES)
        except DovetailError as error:
            return type(error).__name__
        if rows is not None:
            rows.to_pylist()
            # of views and runs, Arrow cannot take some
            again = rows.drop_columns(["view", "runs"]).take(
                pa.array(np.arange(rows.num_rows)[::-1])
            )
            assert again.nbytes <= 4 * _MOST_BYTES, again.nbytes
            batch_bytes(again)
        return "taken"

    return run


def _messages(seed: int) -> Callable[[int], str]:
    """Takes changed messages in at a site that is two intervals old."""
    talks = [(d, _talk(d)) for d in map(_deployment, Algorithm)]

    def run(number: int) -> str:
        rng = np.random.default_rng([seed, number])
        deployment, heard = talks[int(rng.integers(len(talks)))]
        at = int(rng.integers(len(heard)))
        to, body = heard[at]
        peer, data = other(to), changed(body, rng)
        machine = Machine(deployment, to)
        try:
            message = decode(data)
            encode(message)
            machine.check_message(peer, message)
        except DovetailError as error:
            return type(error).__name__
        for interval in range(1, 3):
            _fed(machine, interval)
        try:
            machine.apply(Event(What.MESSAGE, 0, {"peer": peer, "seq": 1}, data), message)
            for interval in range(3, 5):
                _fed(machine, interval)
        except Exception as error:  # noqa: BLE001 - a site stops then, and is not harmed
            return f"stopped by {type(error).__name__}"
        assert machine.nbytes <= 4 * _MOST_BYTES, machine.nbytes
        return "taken"

    return run


KINDS: dict[str, Callable[[int], Callable[[int], str]]] = {"rows": _rows, "messages": _messages}


def cases(kind: str, count: int, seed: int) -> Iterator[str]:
    """What became of each case."""
    run = KINDS[kind](seed)
    for number in range(count):
        try:
            yield run(number)
        except BaseException:
            sys.stderr.write(f"case {number} of seed {seed} ({kind})\n")
            raise


def main() -> None:
    kind, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    faulthandler.enable()
    found: Counter[str] = Counter()
    for number, outcome in enumerate(cases(kind, count, seed)):
        found[outcome] += 1
        if number % 100 == 0:
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
