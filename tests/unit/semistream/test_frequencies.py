"""What leaving a row out loses, from the staged table, inside the budget."""

import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.semistream import frequencies
from dovetail.semistream.frequencies import (
    COMPONENT,
    Worth,
    learn_frequencies,
    most_bytes,
)
from dovetail.semistream.shedding import Frequencies, SketchedFrequencies

SEED = 8
Make = Callable[..., Any]
BUDGET = 400_000


def nbytes_of(known: Frequencies | SketchedFrequencies) -> int:
    exact = isinstance(known, Frequencies)
    return sum(
        some.nbytes for some in ((known.codes, known.counts) if exact else (known.counters,))
    )


def keys_with_repeats(rows: int, values: int) -> list[int]:
    rng = np.random.default_rng(SEED)
    return [*rng.integers(0, values, rows).tolist(), *([values] * 500)]


@pytest.mark.parametrize("page_rows", [1, 3, 64, 5000])
def test_frequencies_when_the_table_is_read_in_pieces_then_are_exact(
    make_bench: Make, page_rows: int
) -> None:
    table = keys_with_repeats(1500, 300)
    bench = make_bench("seek", table, page_rows=page_rows)
    bench.operator.working_bytes = 10 * 8 * 700  # 700 codes at a time, or a page
    assert list(learn_frequencies(bench.operator)) == []
    known = bench.operator.frequencies
    assert isinstance(known, Frequencies)
    sought = np.arange(-5, 310)
    counts = Counter(table)
    assert known.of(sought).tolist() == [counts[key] for key in sought.tolist()]
    assert bench.operator.ctx.budget.components[COMPONENT] == nbytes_of(known)
    assert bench.operator.ctx.counters.bytes_read == 0, "this is not reading of the join"


def test_frequencies_when_the_table_is_empty_then_are_zero(make_bench: Make) -> None:
    bench = make_bench("seek", [])
    list(learn_frequencies(bench.operator))
    assert bench.operator.frequencies.of(np.array([1, 2])).tolist() == [0, 0]


def test_frequencies_when_they_do_not_fit_then_are_estimated_inside_the_share(
    make_bench: Make,
) -> None:
    table = [*range(6000), *([7] * 900)]
    bench = make_bench("seek", table, page_rows=64, budget_bytes=BUDGET)
    list(learn_frequencies(bench.operator))
    known, budget = bench.operator.frequencies, bench.operator.ctx.budget
    assert isinstance(known, SketchedFrequencies)
    assert nbytes_of(known) <= budget.components[COMPONENT] == most_bytes(BUDGET)
    few, many = known.of(np.array([8, 7])).tolist()
    assert 1 <= few < 100 < 901 <= many


def test_frequencies_when_rows_fill_the_memory_then_they_are_worked_off_for_them(
    make_bench: Make,
) -> None:
    bench = make_bench("seek", range(2000), page_rows=64, budget_bytes=BUDGET)
    rng = np.random.default_rng(SEED)
    budget = bench.operator.ctx.budget
    while budget.used_bytes + 32_000 <= BUDGET:
        bench.feed(rng.integers(0, 3000, 20).tolist())
    waiting = bench.operator.pending()
    bench.drive.batches += learn_frequencies(bench.operator)
    assert bench.operator.pending() < waiting
    assert budget.components[COMPONENT] == 32_000
    bench.assert_exactly_once()


def test_frequencies_when_learned_once_then_are_kept(make_bench: Make) -> None:
    bench = make_bench("meshjoin", range(50))
    list(learn_frequencies(bench.operator))
    known = bench.operator.frequencies
    list(learn_frequencies(bench.operator))
    assert bench.operator.frequencies is known


@pytest.mark.parametrize(
    ("how", "results"),
    [
        ("inner", [0, 1, 3, 0]),
        ("left", [1, 1, 3, 1]),
        ("semi", [0, 1, 1, 0]),
        ("anti", [1, 0, 0, 1]),
    ],
)
def test_worth_when_the_kind_of_join_varies_then_is_the_number_of_results(
    how: str, results: list[int]
) -> None:
    """Keys without a match, with one, with three, and one that is null."""
    known = Frequencies(np.array([2, 3]), np.array([1, 3]))
    valid = np.array([True, True, True, False])
    assert Worth(known, how, valid).of(np.array([1, 2, 3, 3])).tolist() == results


# -- what was learned is kept beside the table --------------------------------------------------

TABLE = [*range(6000), *([7] * 900)]
EXACT, SKETCHED = None, BUDGET  # a budget that has room for every code, and one that has not
SOUGHT = np.arange(-10, 6100)


def learned(bench: Any) -> tuple[Any, int]:
    """The frequencies of another operator on the same table, and how often it read codes."""
    bench.restore()
    table, reads = bench.operator.table, 0
    codes = table.codes

    def counted(first: int, stop: int) -> Any:
        nonlocal reads
        reads += 1
        return codes(first, stop)

    table.codes = counted
    list(learn_frequencies(bench.operator))
    return bench.operator.frequencies, reads


def files(bench: Any) -> list[Path]:
    return sorted(bench.table_directory.glob("*frequencies*"))


@pytest.mark.parametrize("budget", [EXACT, SKETCHED])
def test_frequencies_when_learned_before_then_are_loaded_and_no_code_is_read(
    make_bench: Make, budget: int | None
) -> None:
    bench = make_bench("seek", TABLE, page_rows=64, budget_bytes=budget)
    first, reads = learned(bench)
    assert reads > 0
    (file,) = files(bench)
    again, reads = learned(bench)
    assert reads == 0
    assert type(again) is type(first)
    assert again.of(SOUGHT).tolist() == first.of(SOUGHT).tolist()
    held = bench.operator.ctx.budget.components[COMPONENT]
    assert nbytes_of(again) <= held == bench.operator.aside_bytes
    assert file.stat().st_size == nbytes_of(again) + 8


@pytest.mark.parametrize("budget", [8 * 16 * 60_000, 2_000_000])
def test_frequencies_when_learned_or_loaded_then_take_what_is_reserved(
    make_bench: Make, budget: int
) -> None:
    """Exact or a sketch; learning has working memory besides."""
    bench = make_bench("seek", range(60_000), page_rows=64, budget_bytes=budget)
    for spare in (bench.operator.working_bytes, 64_000):
        bench.restore()
        tracemalloc.start()
        list(learn_frequencies(bench.operator))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        held = bench.operator.ctx.budget.components[COMPONENT]
        assert nbytes_of(bench.operator.frequencies) <= held
        assert peak <= held + spare


def test_frequencies_when_the_budget_differs_then_are_learned_for_it(make_bench: Make) -> None:
    bench = make_bench("seek", TABLE, page_rows=64)
    for budget, kind in [(None, Frequencies), (BUDGET, SketchedFrequencies)] * 2:
        bench.budget_bytes = budget
        known, reads = learned(bench)
        assert isinstance(known, kind)
    assert reads == 0
    bench.budget_bytes = 3 * BUDGET // 2
    known, reads = learned(bench)
    assert reads > 0
    assert nbytes_of(known) > BUDGET // 8
    assert len(files(bench)) == 3
    bench.budget_bytes = 8 * 16 * 6000  # just enough
    known, reads = learned(bench)
    assert isinstance(known, Frequencies)
    assert reads == 0


@pytest.mark.parametrize("budget", [EXACT, SKETCHED])
@pytest.mark.parametrize("damage", ["empty", "zero", "short", "long", "bit", "other"])
def test_frequencies_when_their_file_is_damaged_then_are_learned_anew(
    make_bench: Make, budget: int | None, damage: str
) -> None:
    bench = make_bench("seek", TABLE, page_rows=64, budget_bytes=budget)
    first, _ = learned(bench)
    (file,) = files(bench)
    whole = file.read_bytes()
    spoilt = {
        "empty": b"",
        "zero": bytes(8),
        "short": whole[:-16],
        "long": whole + bytes(16),
        "bit": whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:],
        "other": whole[:8] + bytes(len(whole) - 8),
    }[damage]
    file.write_bytes(spoilt)
    again, reads = learned(bench)
    assert reads > 0
    assert again.of(SOUGHT).tolist() == first.of(SOUGHT).tolist()
    assert file.read_bytes() == whole
    assert learned(bench)[1] == 0


def test_frequencies_when_their_file_cannot_be_written_then_are_learned_all_the_same(
    make_bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    bench = make_bench("seek", TABLE, page_rows=64)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        known, _ = learned(bench)
    assert known.of(np.array([7])).tolist() == [901]
    assert files(bench) == []


def test_frequencies_when_two_learn_at_once_then_each_sees_a_whole_file(make_bench: Make) -> None:
    """One has read the codes before the other writes, and writes after it."""
    bench = make_bench("seek", TABLE, page_rows=64)
    learned(bench)
    (file,) = files(bench)
    whole = file.read_bytes()
    with file.open("rb") as reading:
        file.unlink()
        learned(bench)
        assert reading.read() == whole
    assert file.read_bytes() == whole
    assert files(bench) == [file]


WRITER = """
import sys
from pathlib import Path
import numpy as np
from dovetail.semistream import frequencies
for _ in range(200):
    frequencies._write(Path(sys.argv[1]), np.full(20_000, int(sys.argv[2])))
"""


def test_frequencies_when_two_processes_write_them_then_a_third_reads_them_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "frequencies-exact.bin"
    frequencies._write(path, np.full(20_000, 1))
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), number]) for number in ("1", "2")
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        found = frequencies._read(path, 8 * 20_000)
        assert found is not None, "a file that is not whole"
        seen.add(int(found[0]))
        assert (found == found[0]).all()
    assert [writer.wait() for writer in writers] == [0, 0]
    assert seen == {1, 2}
    assert list(tmp_path.iterdir()) == [path]
