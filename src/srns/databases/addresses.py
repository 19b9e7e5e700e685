"""Addresses of databases: what a URL says, the name it goes by in everything that is printed or kept, and quoted table names.

The name never holds a user or password. What is before the last "@" of a URL is taken for these, so that a password that was
not percent-encoded stays out of it too; an "@" further on has to be written %40.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from srns.errors import ConfigError

KINDS = {"postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite", "duckdb": "duckdb"}
EXPECTED = "expected postgresql://host/database, sqlite:///file or duckdb:///file (four slashes for an absolute path)"
SHOWN_OPTIONS = ("host", "port", "dbname", "service")  # of those after "?"; any other may be, or hold, a secret
SECRET_OPTIONS = ("password", "sslpassword")
_URL = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)://", re.S)
_MEANT = re.compile(rf"\s*({'|'.join(KINDS)})\b[^/\\]{{0,20}}?:", re.I)  # a URL with a slip in it, which may hold a password


@dataclass(frozen=True)
class Address:
    """Where a database is. `name` may be shown; `options` are for the driver alone."""

    kind: str
    name: str
    database: str  # name of the database, or path of its file
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def scrubbed(self, text: str) -> str:
        """`text` of a driver without passwords, should it quote them."""
        known = [self.options.get(option, "") for option in SECRET_OPTIONS] + [os.environ.get("PGPASSWORD", "")]
        for secret in sorted(filter(None, known), key=len, reverse=True):
            for spelling in (secret, quote(secret, safe=""), repr(secret)[1:-1]):
                text = text.replace(spelling, "***")
        return without_userinfo(text)

    @property
    def file(self) -> Path:
        return Path(self.database)


def is_url(source: object) -> bool:
    """Whether this names a database, or was meant to.

    >>> is_url("postgresql://host/shop"), is_url("clicks.csv")
    (True, False)
    """
    return isinstance(source, str) and bool(_URL.match(source) or _MEANT.match(source))


def shown(source: object) -> str:
    """A name for data that can be printed and kept: of a URL, the address without user and password.

    >>> shown("postgresql://ann:secret@host:5432/shop?sslmode=require"), shown("clicks.csv")
    ('postgresql://host:5432/shop', 'clicks.csv')
    """
    text = str(source)
    if not is_url(text):
        return text
    try:
        return parse(text).name
    except ConfigError:
        return f"{_scheme(text)}://..."


def without_userinfo(text: str) -> str:
    """A message without the user and password of any URL in it.

    >>> without_userinfo("cannot write postgresql://ann:secret@host/shop")
    'cannot write postgresql://host/shop'
    """
    return re.sub(r"([A-Za-z][A-Za-z0-9+.-]*:/{1,3})[^\s'\"]*@", r"\1", text)


def parse(url: str) -> Address:
    """The address that a URL stands for; ConfigError, without its secrets, where it is none."""
    kind = KINDS.get(_scheme(url))
    if kind is None:
        raise ConfigError(f"{_scheme(url)}:// is no database that can be used here; {EXPECTED}")
    found = _URL.match(url)
    if found is None:
        raise ConfigError(f"not the address of a database after {_scheme(url)}:; {EXPECTED}")
    rest = url[found.end() :].rstrip("\r\n")
    return _server(kind, rest) if kind == "postgresql" else _file(kind, rest)


def _scheme(url: str) -> str:
    """The scheme alone: of postgresql+psycopg, as SQLAlchemy writes it, what is before the driver."""
    return re.split(r"[+:]", url.strip(), maxsplit=1)[0].lower()[:40]


def _file(kind: str, rest: str) -> Address:
    path = rest.removeprefix("/")
    if path == rest or not path:
        raise ConfigError(f"{kind}:// needs a file; {EXPECTED}")
    if path.startswith(("md:", "motherduck:")):
        raise ConfigError("duckdb:///md:... is a service, and only DuckDB files can be used here")
    return Address(kind, f"{kind}:///{path}", path)


def _server(kind: str, rest: str) -> Address:
    userinfo, at, place = rest.rpartition("@")
    match = re.fullmatch(r"(?P<hosts>[^/?]*)(?:/(?P<database>[^?]*))?(?:\?(?P<options>.*))?", place, re.S)
    assert match is not None  # every text has this form
    database = unquote(match["database"] or "")
    hosts = [_host(each) for each in match["hosts"].split(",")] if match["hosts"] else []
    options = {"dbname": database} if database else {}
    if hosts:
        options["host"] = ",".join(host for host, _ in hosts)
        options["port"] = ",".join(port for _, port in hosts)
    if at:
        user, _, password = userinfo.partition(":")
        options |= {name: unquote(value) for name, value in (("user", user), ("password", password)) if value}
    given = {}
    for pair in filter(None, re.split("&", match["options"] or "")):
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"what follows ? in a {kind} URL is name=value&name=value; a value is missing")
        given[unquote(name)] = unquote(value)
    options = {name: value for name, value in (options | given).items() if value}
    kept = "&".join(f"{name}={quote(given[name], safe='/')}" for name in SHOWN_OPTIONS if name in given)
    hosts_shown = ",".join(host + (f":{port}" if port else "") for host, port in hosts)
    name = f"{kind}://{hosts_shown}" + (f"/{quote(database, safe='')}" if database else "") + (f"?{kept}" if kept else "")
    return Address(kind, name, database or options.get("dbname", ""), options)


def _host(text: str) -> tuple[str, str]:
    """Host and port. What else stands there could be a password without its "@", and is not repeated."""
    match = re.fullmatch(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]\s]*)(?::(?P<port>[0-9]{0,5}))?", text)
    if match is None:
        raise ConfigError(
            "after // a postgresql URL has user:password@host:port, or host:port; the port is a number, and in user and "
            "password all but letters and digits is percent-encoded"
        )
    return unquote(match["host"]).strip("[]"), match["port"] or ""


def table_parts(table: str) -> list[str]:
    """The parts of a table's name: schema.table, or any names in double quotes, as SQL writes them.

    >>> table_parts("shop.clicks"), table_parts('a"b'), table_parts('"a.b"."c""d"')
    (['shop', 'clicks'], ['a"b'], ['a.b', 'c"d'])
    """
    quoted = r'"(?:[^"]|"")+"'
    if re.fullmatch(rf"{quoted}(?:\.{quoted})*", table, re.S):
        return [part[1:-1].replace('""', '"') for part in re.findall(quoted, table, re.S)]
    parts = table.split(".")
    if not all(parts) or len(parts) > 3 or "\0" in table:
        raise ConfigError(f'table {table!r}: expected NAME or SCHEMA.NAME, a name with dots in double quotes: "a.b"')
    return parts


def quoted_table(table: str) -> str:
    """A table's name for SQL, so that nothing in it is taken for anything but a name.

    >>> quoted_table('clicks; DROP TABLE users --')
    '"clicks; DROP TABLE users --"'
    """
    return ".".join(quoted(part) for part in table_parts(table))


def quoted(name: str) -> str:
    """A column's or table's name in double quotes."""
    return '"' + name.replace('"', '""') + '"'
