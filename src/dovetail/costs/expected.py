"""Reports what a key sample predicts, and its uncertainty."""

from dataclasses import dataclass

from dovetail.costs.cleanup import CleanupMachine, cleanup_seconds, reading_seconds
from dovetail.costs.explanation import about
from dovetail.costs.replay import FEW_ROWS, Forecast
from dovetail.kernel.memory import format_bytes
from dovetail.kernel.protocol import SIDE_NAMES

_NUMBERS = ("no", "one", "two", "three", "four")


@dataclass(frozen=True)
class Expected:
    """A forecast, and the machine of its Cleanup; None if there will be no Cleanup."""

    forecast: Forecast
    machine: CleanupMachine | None = None


def expected_lines(expected: Expected | None, why_not: str) -> list[str]:
    """The estimate, or why there is none."""
    if expected is None:
        return [f"no estimate: {why_not}"]
    forecast = expected.forecast
    lines = _basis(forecast)
    if forecast.stopped is not None:
        stop = f"the join would STOP after about {forecast.stopped:.0%} of the rows"
        return [*lines, f"{stop}, in which it finds about {about(forecast.online)} results"]
    lines += [_results(forecast), *_kept(forecast)]
    if expected.machine is None or not forecast.spilled_rows:
        return [*lines, "nothing is spilled, and Cleanup has nothing to do"]
    return [*lines, *_cleanup(forecast, expected.machine)]


def _basis(forecast: Forecast) -> list[str]:
    sampled, total = forecast.sampled_rows, forecast.input_rows
    rows = " and ".join(
        f"{sampled[side]:,} of {total[side]:,} rows of {name}"
        for side, name in enumerate(SIDE_NAMES)
    )
    how = "both sides to come evenly mixed"
    if forecast.in_turn:
        how = "each micro-batch to bring its files of left and then those of right"
    return [
        f"estimated from {rows}, joined with {100 * forecast.fraction:.3g} % of the memory;",
        f"it takes {how} and without pauses, and the inputs to be as they are now",
    ]


def _results(forecast: Forecast) -> str:
    if not forecast.results:
        return "results: none in the sample, so that nothing can be said of when they come"
    text = f"results: about {about(forecast.results)}"
    text += f", {forecast.online_share:.1%} of them online, while rows arrive"
    if not forecast.shares:
        return text
    count = _NUMBERS[len(forecast.shares)]
    shares = [*forecast.shares, forecast.online_share]
    basis = f"with it and with {count} parts of it by themselves"
    if forecast.mixed_share is not None:
        shares.append(forecast.mixed_share)
        basis = f"with it, with {count} parts of it by themselves, and with the sides evenly mixed"
    return f"{text} ({min(shares):.1%} to {max(shares):.1%} {basis})"


def _kept(forecast: Forecast) -> list[str]:
    sides = ", ".join(
        f"{about(rows)} rows of {name} ({format_bytes(round(nbytes))} with the index)"
        for name, rows, nbytes in zip(
            SIDE_NAMES, forecast.kept_rows, forecast.kept_bytes, strict=True
        )
    )
    lines = [f"in memory when the last row has come: about {sides}"]
    if forecast.spilled_rows and forecast.sampled_kept < FEW_ROWS:
        lines.append(
            f"ROUGH: these are {forecast.sampled_kept:,} rows of the sample; take a larger one"
        )
    return lines


def _cleanup(forecast: Forecast, machine: CleanupMachine) -> list[str]:
    storage = machine.storage
    spilled, read, rewritten, speed = (
        format_bytes(round(nbytes))
        for nbytes in (
            forecast.spilled_bytes,
            forecast.read_bytes,
            forecast.rewritten_bytes,
            storage.bytes_per_second,
        )
    )
    again = f" and writes {rewritten}" if forecast.rewritten_bytes else ""
    workers = "1 worker" if machine.workers == 1 else f"{machine.workers} workers"
    note = f" ({storage.note})" if storage.note else ""
    time = f"  {_span(cleanup_seconds(forecast, machine))} with {workers}"
    waits = (
        f"{_span(reading_seconds(forecast, machine))} of it for storage, unless blocks are cached"
    )
    return [
        f"spilled while rows arrive: about {spilled}, {about(forecast.spilled_rows)} rows",
        f"cleanup: finds about {about(forecast.later)} results, and reads {read} back{again}",
        f"{time}, besides what Spark itself takes; {waits}: it reads {speed} a second{note}",
    ]


def _span(seconds: float) -> str:
    if seconds < 1:
        return "a second or less"
    if seconds < 120:
        return f"about {seconds:.0f} seconds"
    minutes, hours = seconds / 60, seconds / 3600
    return f"about {minutes:.0f} minutes" if hours < 2 else f"about {hours:.1f} hours"
