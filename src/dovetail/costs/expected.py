"""Reports what a key sample predicts, and its uncertainty."""

from dataclasses import dataclass

from dovetail.costs.cleanup import CleanupMachine, cleanup_seconds, reading_seconds
from dovetail.costs.replay import FEW_ROWS, Outlook
from dovetail.kernel.memory import format_bytes
from dovetail.kernel.protocol import SIDE_NAMES

_NUMBERS = ("no", "one", "two", "three", "four")


@dataclass(frozen=True)
class Expected:
    """An outlook, and what Cleanup will run on; None if there will be no Cleanup."""

    outlook: Outlook
    machine: CleanupMachine | None = None


def expected_lines(expected: Expected | None, why_not: str) -> list[str]:
    """The estimate, or why there is none."""
    if expected is None:
        return [f"no estimate: {why_not}"]
    outlook = expected.outlook
    lines = _basis(outlook)
    if outlook.stopped is not None:
        stop = f"the join would STOP after about {outlook.stopped:.0%} of the rows"
        return [*lines, f"{stop}, in which it finds about {_about(outlook.online)} results"]
    lines += [_results(outlook), *_kept(outlook)]
    if expected.machine is None or not outlook.spilled_rows:
        return [*lines, "nothing is spilled, and Cleanup has nothing to do"]
    return [*lines, *_cleanup(outlook, expected.machine)]


def _basis(outlook: Outlook) -> list[str]:
    sampled, total = outlook.sampled_rows, outlook.input_rows
    rows = " and ".join(
        f"{sampled[side]:,} of {total[side]:,} rows of {name}"
        for side, name in enumerate(SIDE_NAMES)
    )
    how = "both sides to come evenly mixed"
    if outlook.in_turn:
        how = "each micro-batch to bring its files of left and then those of right"
    return [
        f"estimated from {rows}, joined with {100 * outlook.fraction:.3g} % of the memory;",
        f"it takes {how} and without pauses, and the inputs to be as they are now",
    ]


def _results(outlook: Outlook) -> str:
    if not outlook.results:
        return "results: none in the sample, so that nothing can be said of when they come"
    text = f"results: about {_about(outlook.results)}"
    text += f", {outlook.online_share:.1%} of them online, while rows arrive"
    if not outlook.shares:
        return text
    count = _NUMBERS[len(outlook.shares)]
    shares = [*outlook.shares, outlook.online_share]
    basis = f"with it and with {count} parts of it by themselves"
    if outlook.mixed_share is not None:
        shares.append(outlook.mixed_share)
        basis = f"with it, with {count} parts of it by themselves, and with the sides evenly mixed"
    return f"{text} ({min(shares):.1%} to {max(shares):.1%} {basis})"


def _kept(outlook: Outlook) -> list[str]:
    sides = ", ".join(
        f"{_about(rows)} rows of {name} ({format_bytes(round(nbytes))} with the index)"
        for name, rows, nbytes in zip(
            SIDE_NAMES, outlook.kept_rows, outlook.kept_bytes, strict=True
        )
    )
    lines = [f"in memory when the last row has come: about {sides}"]
    if outlook.spilled_rows and outlook.sampled_kept < FEW_ROWS:
        lines.append(
            f"ROUGH: these are {outlook.sampled_kept:,} rows of the sample; take a larger one"
        )
    return lines


def _cleanup(outlook: Outlook, machine: CleanupMachine) -> list[str]:
    storage = machine.storage
    spilled, read, rewritten, speed = (
        format_bytes(round(nbytes))
        for nbytes in (
            outlook.spilled_bytes,
            outlook.read_bytes,
            outlook.rewritten_bytes,
            storage.bytes_per_second,
        )
    )
    again = f" and writes {rewritten}" if outlook.rewritten_bytes else ""
    workers = "1 worker" if machine.workers == 1 else f"{machine.workers} workers"
    note = f" ({storage.note})" if storage.note else ""
    time = f"  {_span(cleanup_seconds(outlook, machine))} with {workers}"
    waits = (
        f"{_span(reading_seconds(outlook, machine))} of it for storage, unless blocks are cached"
    )
    return [
        f"spilled while rows arrive: about {spilled}, {_about(outlook.spilled_rows)} rows",
        f"cleanup: finds about {_about(outlook.later)} results, and reads {read} back{again}",
        f"{time}, besides what Spark itself takes; {waits}: it reads {speed} a second{note}",
    ]


def _about(number: float) -> str:
    """To three digits: more would promise too much."""
    return f"{int(float(f'{number:.3g}')):,}"


def _span(seconds: float) -> str:
    if seconds < 1:
        return "a second or less"
    if seconds < 120:
        return f"about {seconds:.0f} seconds"
    minutes, hours = seconds / 60, seconds / 3600
    return f"about {minutes:.0f} minutes" if hours < 2 else f"about {hours:.1f} hours"
