"""In which order things happen to an operator: scripts, written out or drawn.

A script is a list of steps. It need not be complete: whoever runs it pushes the rows that are left
over, ends both inputs and polls until nothing is pending.

`burst_script` lets rows come in bursts with pauses under a virtual clock: the operator gets as much
fuel as fits into a pause, which is how the reactive phase of a join gets its turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.kernel.protocol import LEFT, RIGHT, SIDES


@dataclass(frozen=True)
class Push:
    """The next `rows` rows of a side come, as one batch. Fewer if there are not so many left."""

    side: int
    rows: int


@dataclass(frozen=True)
class Poll:
    """The operator may do deferred work."""

    fuel: int


@dataclass(frozen=True)
class Finish:
    """An input ends, as far as is known: a later `Push` re-opens it."""

    side: int


@dataclass(frozen=True)
class Restore:
    """The state is saved, and another operator goes on from it with files of its own."""


@dataclass(frozen=True)
class Save:
    """The state is saved, and the same operator goes on."""


@dataclass(frozen=True)
class Crash:
    """All since the last save is lost, results and input alike, and has to be done again."""


Step = Push | Poll | Finish | Restore | Save | Crash
Script = Sequence[Step]


class VirtualClock:
    """Milliseconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def advance(self, milliseconds: float) -> float:
        self.now_ms += milliseconds
        return self.now_ms


@dataclass(frozen=True)
class Bursts:
    """An arrival process: bursts of about `burst_rows`, with pauses of about `pause_ms`."""

    burst_rows: int = 40
    batch_rows: int = 20
    pause_ms: float = 20.0
    rows_per_ms: float = 10.0

    def events(self, rng: np.random.Generator, rows: int) -> list[tuple[float, int]]:
        """When batches come, and of how many rows: `rows` in all."""
        clock = VirtualClock()
        events: list[tuple[float, int]] = []
        while rows:
            clock.advance(rng.exponential(self.pause_ms))
            left = min(rows, 1 + int(rng.poisson(self.burst_rows)))
            rows -= left
            while left:
                batch = min(left, 1 + int(rng.poisson(self.batch_rows)))
                left -= batch
                events.append((clock.advance(batch / self.rows_per_ms), batch))
        return events


def burst_script(
    rng: np.random.Generator, rows: tuple[int, int], bursts: Bursts, fuel_per_ms: float = 5.0
) -> list[Step]:
    """Both sides come in bursts of their own; every pause is work time for the operator."""
    arrivals = sorted(
        (when, side, batch) for side in SIDES for when, batch in bursts.events(rng, rows[side])
    )
    script: list[Step] = []
    now = 0.0
    for when, side, batch in arrivals:
        fuel = int((when - now) * fuel_per_ms)
        if fuel:
            script.append(Poll(fuel))
        script.append(Push(side, batch))
        now = when
    return [*script, Finish(LEFT), Finish(RIGHT)]


@dataclass(frozen=True)
class Habits:
    """How often what happens in a random script: weights against a push, which has weight 1."""

    batch_rows: int = 40  #: a batch has up to twice as many rows
    polls: float = 0.3
    fuel: int = 400
    finishes: float = 0.1
    restores: float = 0.05
    saves: float = 0.05
    crashes: float = 0.05
    left_share: float = 0.5  #: of the pushes


def random_script(
    rng: np.random.Generator, rows: tuple[int, int], habits: Habits | None = None
) -> list[Step]:
    """Any interleaving: batches of any size, work, ends that were none, saves and crashes.

    After the last row both inputs end, and the cleanup is interrupted a few times as well.
    """
    habits = habits or Habits()
    script: list[Step] = []
    left = list(rows)
    while any(left):
        step = _draw(rng, habits)
        if isinstance(step, Push):
            left[step.side] = max(0, left[step.side] - step.rows)
        elif isinstance(step, Finish) and rng.random() < 0.5:
            # both ends at once let the cleanup begin although more rows will come
            script.append(Finish(1 - step.side))
        script.append(step)
    script += [Finish(LEFT), Finish(RIGHT)]
    for _ in range(int(rng.integers(0, 6))):
        script.append(Poll(1 + int(rng.integers(0, habits.fuel))))
        if rng.random() < 5 * (habits.restores + habits.crashes):
            script.append(Restore() if rng.random() < 0.5 else Crash())
    return script


def _draw(rng: np.random.Generator, habits: Habits) -> Step:
    weights = np.array(
        [1.0, habits.polls, habits.finishes, habits.restores, habits.saves, habits.crashes]
    )
    kind = int(rng.choice(len(weights), p=weights / weights.sum()))
    if kind == 0:
        side = LEFT if rng.random() < habits.left_share else RIGHT
        # an empty batch now and then
        return Push(side, int(rng.integers(0, 2 * habits.batch_rows + 1)))
    if kind == 1:
        return Poll(1 + int(rng.integers(0, habits.fuel)))
    if kind == 2:
        return Finish(int(rng.integers(0, 2)))
    return (Restore(), Save(), Crash())[kind - 3]
