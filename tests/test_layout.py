"""The list of files in CONTRIBUTING.md, which says that imports point up it only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import srns

SOURCE = Path(srns.__file__).parent
GUIDE = SOURCE.parents[1] / "CONTRIBUTING.md"


def listed() -> list[list[str]]:
    """The rows of the list: names of files and folders that stand side by side."""
    text = GUIDE.read_text(encoding="utf-8").partition("imports point up this list only:")[2].partition("\n## ")[0]
    rows = re.findall(r"^    ([a-z]+(?:, [a-z]+)*)  ", text, flags=re.MULTILINE)
    return [row.split(", ") for row in rows]


def imported(tree: ast.AST) -> Iterator[str]:
    """What is imported as a module is loaded, not later within functions nor for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "srns":
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("srns."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(node)


def test_all_files_are_listed_once() -> None:
    there = [path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    assert sorted(name for row in listed() for name in row) == sorted(set(there) - {"__init__", "__main__"})


def test_imports_point_up_the_list() -> None:
    place = {name: number for number, row in enumerate(listed()) for name in row}
    for file in sorted(SOURCE.rglob("*.py")):
        own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        names = imported(ast.parse(file.read_text(encoding="utf-8")))
        down = [name for name in names if place.get(name, -1) > place.get(own, 99)]
        assert not down, f"{file.relative_to(SOURCE)} imports {down}, further down"
