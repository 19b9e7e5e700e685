"""Times as people read them, in the notes of splits and updates."""

from __future__ import annotations

import time
from typing import Any

PER_SECOND = (1, 10**3, 10**6, 10**9)  # units of times since 1970; files have any of them, dates become microseconds
FIRST, LAST, DAY = 315_532_800, 4_102_444_800, 86_400  # seconds: the years 1980 to 2099 are numbers apart in any two units


def dates(*times: Any) -> list[str]:
    """The times as dates in UTC, if all are such in one unit; else, as of a mere counter or of two clocks, the numbers.

    >>> dates(1_700_000_000, 1_700_003_600)
    ['2023-11-14 22:13 UTC', '2023-11-14 23:13 UTC']
    >>> dates(1_699_920_000_000_000)
    ['2023-11-14']
    >>> dates(3, 1_700_000_000)
    ['3', '1700000000']
    """
    for unit in PER_SECOND:
        seconds = [float(each) / unit for each in times]
        if all(FIRST <= each < LAST for each in seconds):
            form = "%Y-%m-%d" if all(each % DAY == 0 for each in seconds) else "%Y-%m-%d %H:%M UTC"
            return [time.strftime(form, time.gmtime(each)) for each in seconds]
    return [str(each) for each in times]
