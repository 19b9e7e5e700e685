"""The Python in README and docs runs, and what the docs name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_in_the_docs_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs", "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_demo_of_the_readme_is_what_the_demo_prints(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from srns.demo import run_demo

    run_demo(Console(width=80), Console(stderr=True, quiet=True))
    printed = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"What `srns demo` prints\n\n```\n(.*?)```", readme, re.S)
    assert block is not None
    quoted = [line.strip() for line in block.group(1).splitlines() if line.strip()]

    def shape(lines: list[str]) -> list[str]:  # numbers may differ in the last digit between processors
        return [re.sub(r"[0-9.%]+", "#", line) for line in lines if not line.startswith("u0")]

    assert shape(quoted) == shape(printed)
    numbers = [float(value) for value in re.findall(r"0\.\d{4}", "\n".join(quoted))]
    assert numbers == pytest.approx([float(value) for value in re.findall(r"0\.\d{4}", "\n".join(printed))], abs=0.01)
