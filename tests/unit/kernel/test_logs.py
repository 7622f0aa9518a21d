"""Logs: addresses that hold while the files behind them are merged."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.errors import StateCorruptError, StateMissingError, StorageError
from dovetail.kernel import logs
from dovetail.kernel.files import Readers
from dovetail.kernel.logs import FAN_IN, Log

HEADER = b"begin "


class Line:
    """A log, attempt after attempt, beside a plain list of what was put into it."""

    def __init__(self, directory: Path) -> None:
        self.readers = Readers(directory)
        self.log = self.new()
        self.wanted: list[tuple[int, bytes]] = []
        self.attempts = 0

    def new(self) -> Log:
        return Log(self.readers, "x.log", HEADER)

    def attempt(self, *texts: bytes) -> None:
        self.attempts += 1
        for text in texts:
            self.wanted.append((self.log.append(f"a{self.attempts}", text), text))
        self.log.close()

    def restore(self) -> None:
        facts = self.log.facts()
        self.log.close()
        self.log = self.new()
        self.log.restore(facts)

    def read(self, address: int, length: int) -> bytes:
        name, offset = self.log.locate(address)
        return self.readers.read(name, offset, length)

    def check(self) -> None:
        for address, text in self.wanted:
            assert self.read(address, len(text)) == text

    def size(self, name: str) -> int:
        return (self.readers.directory / name).stat().st_size


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    line = Line(tmp_path)
    yield line
    line.log.close()
    line.readers.close()


def test_append_when_not_synced_yet_then_can_be_read(line: Line) -> None:
    first, second = (line.log.append("a", text) for text in (b"one", b"three"))
    assert (line.read(first, 3), line.read(second, 5)) == (b"one", b"three")


def test_log_when_there_are_many_attempts_then_every_address_holds_and_files_stay_few(
    line: Line,
) -> None:
    for number in range(300):
        line.attempt(
            *(bytes([65 + number % 26]) * (1 + (number + i) % 9) for i in range(number % 4))
        )
        if number % 7 == 0:
            line.restore()
        line.check()
        assert len(line.log.files) <= 4 * FAN_IN
    assert len(list(line.readers.directory.iterdir())) > 200, "older versions keep their files"
    assert all(path.read_bytes().startswith(HEADER) for path in line.readers.directory.iterdir())


def test_log_when_a_file_is_full_then_is_not_copied_any_more(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MERGE_BYTES", 1_000)
    names: list[set[str]] = []
    for _ in range(400):
        line.attempt(b"x" * 50)
        names.append(set(line.log.files))
    assert all(line.size(name) <= 1_000 + 50 + len(HEADER) for name in line.log.files)
    assert 20_000 / 1_000 <= len(line.log.files) < 3 * 20_000 / 1_000
    assert len(names[-1] & names[-100]) > 10
    line.check()


def test_log_when_it_grows_then_a_byte_is_copied_a_few_times_only(line: Line) -> None:
    for _ in range(1_000):
        line.attempt(b"y" * 100)
    written = sum(path.stat().st_size for path in line.readers.directory.iterdir())
    assert written < 6 * 100_000  # log8(1000) copies of each, and the first


def test_older_facts_when_files_were_merged_since_then_still_hold(line: Line) -> None:
    for number in range(FAN_IN):
        line.attempt(b"%d" % number)
    facts, wanted = line.log.facts(), list(line.wanted)
    line.attempt(b"merged")
    assert len(line.log.files) == 1
    line.log = line.new()
    line.log.restore(facts)
    line.wanted = wanted
    line.attempt(b"of another attempt")
    line.check()


@pytest.mark.parametrize(
    ("damage", "error"),
    [("gone", StateMissingError), ("cut", StateCorruptError), ("changed", StateCorruptError)],
)
def test_merge_when_a_file_is_gone_or_damaged_then_says_which(
    line: Line, damage: str, error: type[Exception]
) -> None:
    for _ in range(FAN_IN):
        line.attempt(b"some text")
    line.readers.close()
    path = line.readers.directory / line.log.files[3]
    if damage == "gone":
        path.unlink()
    elif damage == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    else:
        path.write_bytes(path.read_bytes()[:-1])
    facts = line.log.facts()
    with pytest.raises(error, match=path.name):
        line.attempt(b"more")
    assert line.log.facts() == facts


def test_merge_when_restored_and_merged_before_then_damage_is_still_found(line: Line) -> None:
    for _ in range(FAN_IN + 1):  # the last one holds copies of all others
        line.attempt(b"some text")
        line.restore()
    for _ in range(FAN_IN - 1):
        line.attempt(b"some more text, and more of it" * 3)
        line.restore()
    assert len(line.log.files) == FAN_IN
    line.readers.close()
    path = line.readers.directory / line.log.files[0]
    path.write_bytes(path.read_bytes().replace(b"some text", b"same text", 1))
    with pytest.raises(StateCorruptError, match=path.name):
        line.attempt(b"more")


def test_append_when_the_file_exists_then_never_overwrites_it(line: Line) -> None:
    line.log.append("a", b"one")
    other = line.new()
    with pytest.raises(StorageError, match=r"a-x\.log"):
        other.append("a", b"two")
    assert line.read(0, 3) == b"one"


def test_log_when_released_up_to_an_address_then_names_only_files_that_reach_beyond_it(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MERGE_BYTES", 1)  # every attempt has a file of its own
    for number in range(6):
        line.attempt(b"x" * 10 * (number + 1))
    files = line.log.files
    line.log.release(line.wanted[2][0] + 1)
    assert line.log.files == files[2:], "the third file has bytes that are still wanted"
    del line.wanted[:2]
    line.restore()
    line.check()
    line.log.release(line.log.length)
    assert line.log.files == []
    line.wanted.clear()
    line.attempt(b"more")
    line.restore()
    line.check()
    assert len(line.log.files) == 1


def test_log_when_released_while_it_is_written_then_keeps_the_file_that_is_open(line: Line) -> None:
    line.log.append("a", b"one")
    line.log.release(line.log.length)
    address = line.log.append("a", b"two")
    assert line.read(address, 3) == b"two"
