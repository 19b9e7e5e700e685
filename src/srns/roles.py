"""Between files and interactions: which columns of a table are user, item, weight and time."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from srns.errors import DataError

KNOWN = {  # lower case, letters and digits only, so that userId, user_id and "User ID" are one name
    "user": "user userid users uid u customer customerid client clientid member memberid visitor visitorid reviewer reviewerid "
    "account accountid",
    "item": "item itemid items iid i product productid movie movieid asin parentasin sku isbn book bookid track trackid song "
    "songid artist artistid game gameid article articleid news newsid video videoid business businessid",
    "weight": "weight rating ratings count score stars overall strength plays playcount qty quantity",
    "time": "time timestamp timestamps datetime date ts when unixtime unixreviewtime eventtime createdat purchasedat orderdate "
    "orderedat",
}

Asked = Mapping[str, str | int | None]  # role -> column name, position, None (recognise it) or False (leave it out)


def listed(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def choose(name: str, found: Sequence[str], asked: Asked) -> dict[str, str]:
    """The column of each role among those `found`: as asked (name or position), else recognised by its name.

    Weight and time may be absent, and are not looked for where False is asked.
    """
    given = {role: column for role, column in asked.items() if column is not None and column is not False}
    chosen = {role: _asked_for(name, found, role, column) for role, column in given.items()}
    for role, column in asked.items():
        if column is not None:
            continue
        known = KNOWN[role].split()
        matches = [field for field in found if _plain(field) in known and field not in chosen.values()]
        if len(matches) > 1:
            raise DataError(
                f"{name}: columns {listed(matches)} could each be the {role}; name it: {role}=... or --{role}-column"
            )
        if not matches and role in ("user", "item"):
            raise DataError(
                f"{name}: no {role} column recognised; found {listed(found)}; name it: {role}=... or --{role}-column"
            )
        chosen.update({role: matches[0]} if matches else {})
    for role in ("user", "item"):
        if role not in chosen:
            raise DataError(f"{role}=False: only weight and time can be left out")
    if len(set(chosen.values())) < len(chosen):
        raise DataError(f"{name}: one column in two roles: {', '.join(f'{r}={c!r}' for r, c in chosen.items())}")
    return {role: chosen[role] for role in KNOWN if role in chosen}


def _asked_for(where: str, found: Sequence[str], role: str, column: str | int) -> str:
    if isinstance(column, int) and not isinstance(column, bool):
        if not 0 <= column < len(found):
            raise DataError(f"{where}: {role}={column}, but there are {len(found)} columns, counted from 0")
        return found[column]
    if not isinstance(column, str) or column not in found:
        raise DataError(f"{where}: no column {column!r} for the {role} ({role}=, --{role}-column); found {listed(found)}")
    return column


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def used_columns(chosen: Mapping[str, str], found: Sequence[str], dated: Sequence[str] = ()) -> str:
    """What was made of the columns, for people: a time column that goes unnoticed would change the split.

    Those `dated` hold dates; of others, the name alone can tell.
    """
    unused = [column for column in found if column not in chosen.values()]
    left = f"; not used: {listed(unused)}" if unused else ""
    times = [column for column in unused if column in dated or re.search("date|time|[ _]at$", column.lower())]
    if times and "time" not in chosen:
        left += f", though {times[0][:40]!r} looks like a time: --time-column {shlex.quote(times[0])}"
    alone = {"weight": " (for --min-weight alone)"}
    return "columns: " + ", ".join(f"{role} = {column}{alone.get(role, '')}" for role, column in chosen.items()) + left
