"""One operator a core, as Spark runs one a partition: processes that join their share of the rows.

Batch engines use every core, and a query of ours does too, with a partition for each. Here worker
processes stand for Spark's: each takes from every batch the rows whose keys are its own, which is
part of what is measured, and joins them as they come. The rows are in every worker's memory before
the clock starts, as they are in the memory of a batch engine, and results stay where they are made.
"""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dovetail.kernel.keys import spread
from dovetail.kernel.protocol import SIDE_NAMES
from dovetail_bench.data import KEY, Relations
from dovetail_bench.kernel_runs import BATCH_ROWS, finish, operator_of
from dovetail_bench.machine import available_cores
from dovetail_bench.measure import Contender, Measured, expect_rows
from dovetail_bench.scratch import scratch


class Share(NamedTuple):
    """Whose rows a worker joins: those of one of `workers` equal shares of all keys."""

    number: int
    workers: int

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mixed = spread(batch.column(KEY).to_numpy()).view(np.uint64)
        return batch.filter(pa.array(mixed % np.uint64(self.workers) == self.number))


@contextmanager
def parallel_contender(name: str, relations: Relations, algorithm: str) -> Iterator[Contender]:
    """Operators with unbounded budgets on all cores; they wait for their turns until the end."""
    workers = available_cores()
    spawning = multiprocessing.get_context("spawn")  # forking would copy the threads of Arrow
    with scratch() as directory:
        for side in SIDE_NAMES:
            table = getattr(relations, side)
            with pa.ipc.new_file(Path(directory, side), table.schema) as writer:
                writer.write_table(table)
        ends = [spawning.Pipe() for _ in range(workers)]
        processes = [
            spawning.Process(
                target=_work,
                args=(theirs, directory, algorithm, Share(number, workers)),
                daemon=True,
            )
            for number, (_, theirs) in enumerate(ends)
        ]
        for process, (_, theirs) in zip(processes, ends, strict=True):
            process.start()
            theirs.close()  # so that we see it if the worker dies
        pipes = [ours for ours, _ in ends]
        try:
            for pipe in pipes:
                pipe.recv()
            yield Contender(name, lambda: _run(pipes, relations))
        finally:
            for pipe in pipes:
                pipe.close()
            for process in processes:
                process.join()


def _run(pipes: list["Connection[str, int]"], relations: Relations) -> Measured:
    started = time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    rows = sum(pipe.recv() for pipe in pipes)
    seconds = time.perf_counter() - started
    expect_rows(rows, relations.pairs)
    return Measured(
        {"whole": seconds},
        {"rows_per_s": 2 * relations.left.num_rows / seconds, "workers": len(pipes)},
    )


def _work(pipe: "Connection[int, str]", directory: Path, algorithm: str, share: Share) -> None:
    """Join whenever told to, and say how many results there were; ends when the pipe does."""
    left, right = (_in_memory(directory / side) for side in SIDE_NAMES)
    relations = Relations(left, right, pairs=0)  # how many there are is what is found out
    batches = list(relations.batches(BATCH_ROWS))
    pipe.send(0)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        with operator_of(relations, algorithm, None) as operator:
            results: list[pa.RecordBatch] = []
            for side, batch in batches:
                results += operator.push(side, share.of(batch))
            results += finish(operator)
            pipe.send(sum(batch.num_rows for batch in results))
            del results  # in the time of nobody


def _in_memory(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        return reader.read_all()
