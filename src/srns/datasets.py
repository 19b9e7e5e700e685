"""Data by name: look in $SRNS_DATA, else simulate, or download, verify and cache.

`DATASETS` holds the names that are always known. Every fixed split or table of interactions (.npz, .inter) in the folder named
by the environment variable SRNS_DATA is one more, called by its file name without the ending. Downloads go to the folder
named by SRNS_CACHE, else to the platform's cache; SRNS_MIRROR names another server than files.grouplens.org.
"""

from __future__ import annotations

import difflib
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from srns.columns import first_line
from srns.config import FILTERS
from srns.databases import is_url
from srns.errors import DataError
from srns.interactions import Interactions
from srns.npz import npz_arrays, read_split
from srns.readers import filtered, read, read_bytes
from srns.roles import Asked
from srns.splits import Split

GROUPLENS = "https://files.grouplens.org/datasets/movielens"
MOVIELENS_COLUMNS: Asked = {"user": 0, "item": 1, "weight": 2, "time": 3}  # the files have no header
OPTIONS = tuple(each for each in FILTERS if each != "drop_bad_rows")  # no row of these data is bad
# What is called by name in the docs and by `srns reproduce`, and has to be in $SRNS_DATA.
PUBLISHED_SPLIT = "a split that the paper's authors published with their code"
BROUGHT = {
    "pinterest": "a fixed split of Pinterest, 37,501 users and 9,836 items",
    "beauty": "Amazon reviews of beauty products, 22,363 users and 12,101 items",
    "sports-outdoors": "Amazon reviews of sports products, 35,598 users and 18,357 items",
}


@dataclass(frozen=True)
class Dataset:
    """A data set that can be loaded by name; `kind` is split, interactions, download or simulated, `source` a path or URL.

    A download is a zip file of checksum `md5` whose `member` is text of `format` without a header.
    """

    name: str
    kind: str
    source: str
    description: str
    md5: str = ""
    member: str = ""
    format: str = ""


DATASETS = {
    "synthetic": Dataset(
        "synthetic", "simulated", "srns.simulation", "simulated users with known taste, about the size of ml-100k"
    ),
    "ml-100k": Dataset(
        "ml-100k",
        "download",
        "ml-100k.zip",
        "MovieLens-100k: 100,000 ratings with times by 943 users of 1,682 films",
        md5="0e33842e24a9c977be4e0107933c0723",
        member="ml-100k/u.data",
        format="tsv",
    ),
    "ml-1m": Dataset(
        "ml-1m",
        "download",
        "ml-1m.zip",
        "MovieLens-1m: 1,000,209 ratings with times by 6,040 users of 3,706 films",
        md5="c4d9eecfca2ab87c1945afe126590906",
        member="ml-1m/ratings.dat",
        format="csv",
    ),
}


def load(name_or_path: str | os.PathLike[str], **read_options: Any) -> Split | Interactions:
    """A data set by name (see `available`), path or URL of a database: a `Split` where the data fix one, else `Interactions`.

    `read_options` are those of `srns.read`, such as `min_weight=4`; a fixed split takes none. A name wins over a file of the
    same name in the current folder; write "./name" for the file.

    >>> load("synthetic", min_user=20).n_items <= 1682
    True
    """
    name = os.fspath(name_or_path)
    if is_url(name):
        return read(name, **read_options)
    dataset = {found.name: found for found in available()}.get(name)
    if dataset is None:
        path = Path(name)
        if not path.exists():
            raise DataError(_unknown(name, path))
        return _load_path(path, read_options)
    if dataset.kind == "simulated":
        from srns.simulation import simulate  # not needed to read a file, and slower to import than all of this module

        _filters_only(dataset, read_options)
        return filtered(simulate().interactions, dataset.name, **read_options)
    if dataset.kind == "download":
        return _from_zip(_download(dataset), dataset, read_options)
    path = Path(dataset.source)
    return _from_zip(path, DATASETS[name], read_options) if path.suffix == ".zip" else _load_path(path, read_options)


def available() -> list[Dataset]:
    """All data sets that `load` knows by name here and now, those of $SRNS_DATA after the built-in ones.

    >>> [dataset.name for dataset in available()][:3]
    ['synthetic', 'ml-100k', 'ml-1m']
    """
    found = {dataset.name: dataset for dataset in _found()}
    builtin = [replace(dataset, source=_url(dataset)) if dataset.md5 else dataset for dataset in DATASETS.values()]
    first = [found.pop(dataset.name, dataset) for dataset in builtin]
    return first + sorted(found.values(), key=lambda dataset: dataset.name)


def folder_mistake() -> str:
    """What is wrong with $SRNS_DATA, for people; empty where nothing is."""
    folder = os.environ.get("SRNS_DATA")
    return f"SRNS_DATA is set to {folder}, which is not a folder" if folder and not Path(folder).is_dir() else ""


def _found() -> Iterator[Dataset]:
    """The data sets in $SRNS_DATA, from names and the arrays' names only; of two files of a stem the later kind here wins."""
    if not (folder := os.environ.get("SRNS_DATA")):
        return
    for path in sorted(Path(folder).glob("*.zip")):
        if path.stem in DATASETS and DATASETS[path.stem].md5:
            yield Dataset(path.stem, "interactions", str(path), DATASETS[path.stem].description)
    for path in sorted(Path(folder).glob("*.npz")):
        if kind := _kind_of_npz(path):
            yield Dataset(path.stem, kind, str(path), "fixed split" if kind == "split" else "interactions in order of time")
    for path in sorted(Path(folder).glob("*.inter")):
        known = DATASETS.get(path.stem)
        yield Dataset(path.stem, "interactions", str(path), known.description if known else "RecBole interactions")


def _kind_of_npz(path: Path) -> str | None:
    try:
        arrays = npz_arrays(path)
    except DataError:  # listing is no place to fail; loading the path itself says what is wrong
        return None
    return "split" if {"train", "test"} <= set(arrays) else "interactions" if "interactions" in arrays else None


def _load_path(path: Path, options: dict[str, Any]) -> Split | Interactions:
    if path.suffix.lower() == ".npz" and path.is_file() and "train" in npz_arrays(path):
        if options:
            raise DataError(f"{path}: a fixed split is used as it is; {', '.join(options)} cannot be applied to it")
        return read_split(path)
    return read(path, **options)


def _filters_only(dataset: Dataset, options: dict[str, Any]) -> None:
    if unknown := [option for option in options if option not in OPTIONS]:
        raise DataError(
            f"{dataset.name}: {', '.join(unknown)} cannot be chosen, as its columns are known; options are {', '.join(OPTIONS)}"
        )


def _unknown(name: str, path: Path) -> str:
    if path.suffix or len(path.parts) > 1:
        return f"{name}: no such file or folder"
    mistake = folder_mistake()
    brought = PUBLISHED_SPLIT if name.removesuffix("-tuning").endswith("-paper") else BROUGHT.get(name)
    if brought:
        return (
            f"{name!r} is {brought}, and cannot be downloaded from here: set SRNS_DATA to a folder that has {name}.npz "
            '(docs/data.md, "Named data", says what is in it)' + (f"; now {mistake}" if mistake else "")
        )
    names = [dataset.name for dataset in available()]
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    where = os.environ.get("SRNS_DATA")
    hint = mistake or (f"also looked in {where}" if where else "set SRNS_DATA to a folder of data files to have those too")
    return f"unknown data set {name!r}: {meant}Known here: {', '.join(names)} ({hint}); or give the path of a file"


def _url(dataset: Dataset) -> str:
    return f"{os.environ.get('SRNS_MIRROR', GROUPLENS).rstrip('/')}/{dataset.source}"


def cache_folder() -> Path:
    """Where downloads are kept: $SRNS_CACHE, else the platform's cache folder."""
    import pooch  # here and below: it takes a tenth of a second that only downloads should cost

    return Path(os.environ.get("SRNS_CACHE") or pooch.os_cache("srns"))


def _download(dataset: Dataset) -> Path:
    """The zip file of a data set, from the cache or else the network.

    Pooch downloads to a temporary file and moves it into place only once its checksum is right, and it checks the cached file
    again each time. So a broken download is never taken for whole, and the next call starts afresh.
    """
    import pooch
    import requests

    file = Path(dataset.source).name
    instead = (
        f"Without a network, get {file} elsewhere, put it (or the same data as {dataset.name}.inter) in a folder, "
        "and name that folder in the environment variable SRNS_DATA"
    )
    try:
        fetch = pooch.HTTPDownloader(progressbar=True, timeout=30)
        kept = pooch.retrieve(dataset.source, f"md5:{dataset.md5}", fname=file, path=cache_folder(), downloader=fetch)
        return Path(kept)
    except requests.RequestException as error:
        raise DataError(f"{dataset.name}: cannot download {dataset.source}: {first_line(error)}. {instead}.") from error
    except ValueError as error:
        raise DataError(
            f"{dataset.name}: {dataset.source} has a wrong checksum (expected md5 {dataset.md5}), so nothing was kept: "
            f"{first_line(error)}. Try again. {instead}."
        ) from error
    except OSError as error:
        raise DataError(
            f"{dataset.name}: cannot write to {cache_folder()} (set SRNS_CACHE to choose another): {error}"
        ) from error


def _from_zip(path: Path, dataset: Dataset, options: dict[str, Any]) -> Interactions:
    _filters_only(dataset, options)
    try:
        with zipfile.ZipFile(path) as archive:
            data = archive.read(dataset.member)
    except KeyError as error:
        raise DataError(
            f"{path}: has no member {dataset.member}; expected the zip file of {dataset.name} from GroupLens"
        ) from error
    except Exception as error:  # damaged bytes make zipfile and zlib raise many kinds of exception
        raise DataError(f"{path}: damaged or not a zip file: {first_line(error)}") from error
    return read_bytes(data, f"{path}/{dataset.member}", format=dataset.format, asked=MOVIELENS_COLUMNS, **options)
