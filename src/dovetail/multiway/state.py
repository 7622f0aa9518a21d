"""Snapshots of a multi-way join: small facts, the blocks on disk, and blocks of what is in memory.

A batch in memory is written once; later snapshots only say which of its rows are still there. Rows
that are in memory as copies (written by Cleanup) are on disk anyway: a snapshot says that they left
memory with it, and an operator restored from it does without them. Join bits are not kept: rows
have to earn them anew.
"""

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import BLOCK, LOGGED, RESIDENT
from dovetail.kernel.catalogue import Catalogue, concatenated, split_tails
from dovetail.kernel.protocol import Snapshot
from dovetail.kernel.runs import Run
from dovetail.kernel.shell import quietly
from dovetail.multiway.keyindex import Slots
from dovetail.multiway.payload import Chunk, pack, unpack
from dovetail.multiway.relation_blocks import part_of

if TYPE_CHECKING:
    from dovetail.multiway.base import MultiWayJoin


def snapshot(join: "MultiWayJoin") -> Snapshot:
    """The state as it is now. Writes batches that no block holds yet."""
    tick = join.ctx.clock.now + 1  # after every row that met the copies
    resident, alive = _persist(join)
    tails = [tail for listed in _lists(join).values() for tail in listed.tails]
    meta = {
        "tick": tick,
        "alive": alive,
        "order": join.order.facts(),
        "widest": join.wide.widest,
        "flushed": join._flushed,
        "cells": [cell.facts(join.joins.boxes(cell), tick) for cell in join.cells],
        "page_entries": join.pages.fan_out,
        "own": join._facts(),
        "logs": join.ctx.store.log_facts(),
    }
    blocks = concatenated([np.array(resident, dtype=BLOCK), *tails])
    return Snapshot(meta, blocks, tuple(join.ctx.store.log_files))


def _lists(join: "MultiWayJoin") -> dict[tuple[int, int], Catalogue]:
    """The lists of blocks, by the label of their entries and the relation."""
    return {
        (part_of(cell.number, attribute), relation): listed
        for cell in join.cells
        for relation, blocks in enumerate(cell.relations)
        for attribute, listed in enumerate(blocks.lists)
    }


def _persist(join: "MultiWayJoin") -> tuple[list[np.void], list[str | None]]:
    """The blocks that hold the rows in memory, and which rows of each are meant."""
    resident: list[np.void] = []
    alive: list[str | None] = []
    for relation, table in enumerate(join.tables):
        stop = 0
        for chunk in table.payload.chunks:
            start, stop = stop, stop + len(chunk)
            kept = ~table.copied[start:stop]
            if not kept.any():
                continue
            if chunk.block is None:
                chunk.compact()
                ats = table.ats.take(np.arange(start, stop))
                run = Run(table.codes[0][start:stop], ats, chunk.rows)
                chunk.block = join.ctx.store.append(run, relation, RESIDENT)
            resident.append(chunk.block)
            alive.append(_as_text(chunk.in_block()[kept], int(chunk.block["rows"])))
        table.payload.changed()
    return resident, alive


def restore(join: "MultiWayJoin", snapshot: Snapshot) -> None:
    """Bring a new join to the state of a snapshot."""
    meta: dict[str, Any] = snapshot.meta
    join.ctx.clock.now = meta["tick"]
    join.ctx.store.restore_logs(meta["logs"])
    lists = _lists(join)
    for tail in split_tails(snapshot.blocks[snapshot.blocks["kind"] >= LOGGED], "part", "side"):
        lists[int(tail[0]["part"]), int(tail[0]["side"])].restore_tail(tail)
    for known, facts in zip(join.cells, meta["cells"], strict=True):
        known.restore(facts)
    join._catalogue.grow(join._catalogue_bytes())
    resident = snapshot.blocks[snapshot.blocks["kind"] == RESIDENT]
    for block, packed in zip(resident, meta["alive"], strict=True):
        _restore_rows(join, block, packed)
    join.order.restore(meta["order"])
    join._flushed = meta["flushed"]
    join._restore_facts(meta["own"])
    quietly(join._settle_rows())


def _restore_rows(join: "MultiWayJoin", block: np.void, packed: str | None) -> None:
    relation = int(block["side"])
    run = join.ctx.store.read(block)
    rows, ats, origin = run.rows, run.ats, None
    if packed is not None:
        origin = np.frombuffer(zlib.decompress(base64.b64decode(packed)), dtype=np.uint8)
        positions = unpack(origin, len(run))
        rows, ats = rows.take(pa.array(positions)), ats.take(positions)
    codes, _ = join._encoders[relation].encode(rows)
    join.tables[relation].restore(Chunk(rows, block.copy(), origin), codes, ats)


def _as_text(positions: Slots, count: int) -> str | None:
    """Which of `count` rows, as text; None for all."""
    if len(positions) == count:
        return None
    return base64.b64encode(zlib.compress(pack(positions, count).tobytes())).decode()
