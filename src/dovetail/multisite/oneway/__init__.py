"""The one-way joins: how rows at a source meet the window of a stream at a destination.

An algorithm has no state of its own. It is called where something happens: `start` at the source,
with rows; `asked` at the destination, with keys; `answered` at the source again. Rows that wait for
an answer are parked at the site. Each ends in `Site.join_copy` or in a message `PROBE`, upon which
the destination joins with its window.
"""

from dovetail.multisite.oneway.base import OneWay, Task
from dovetail.multisite.oneway.destination import SMD1, SMD2, SPD
from dovetail.multisite.oneway.source import SMS1, SMS2, SPS
from dovetail.multisite.plan import Algorithm

ONE_WAY: dict[Algorithm, OneWay] = {
    Algorithm.SP_S: SPS(),
    Algorithm.SP_D: SPD(),
    Algorithm.SM_S1: SMS1(),
    Algorithm.SM_S1B: SMS1(bloom=True),
    Algorithm.SM_S2: SMS2(),
    Algorithm.SM_D1: SMD1(),
    Algorithm.SM_D1B: SMD1(bloom=True),
    Algorithm.SM_D2: SMD2(),
}

__all__ = ["ONE_WAY", "OneWay", "Task"]
