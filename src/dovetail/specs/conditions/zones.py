"""Time zones in which clocks are never changed."""

import re

_FIXED = re.compile(
    r"z|utc|gmt|ut|(utc|gmt|ut)?[+-]\d{1,2}(:\d{2}){0,2}|etc/(utc|gmt|uct|zulu|greenwich)"
    r"|etc/gmt[+-]\d{1,2}|universal|zulu",
    re.IGNORECASE,
)


def has_fixed_offset(zone: str) -> bool:
    """Whether a value of `spark.sql.session.timeZone` stands for one offset at all times.

    True only where the name says so: a place may change its clocks, or has.
    """
    return _FIXED.fullmatch(zone.strip()) is not None
