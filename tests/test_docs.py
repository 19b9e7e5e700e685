"""The Python and the shell sessions in README and docs run, sessions print what is shown, and what the docs name exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import srns
from srns.experiments import field, figure3, noise, table3
from srns.experiments.published import ALPHAS
from srns.losses import blended

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


SAMPLERS_PAGE = (ROOT / "docs" / "samplers.md").read_text(encoding="utf-8")
OF_MODULES = dict(re.findall(r"^\| (`.*?) \| (any|only|none)[;:, ]", SAMPLERS_PAGE, re.M))  # rows of the table of samplers
KIND_OF = {name: kind for names, kind in OF_MODULES.items() for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("name", srns.SAMPLERS)
def test_the_loop_of_the_docs_is_right_for_the_samplers_that_its_table_says(name: str) -> None:
    """Their weights and mixtures count as in the losses of this package; the others refuse a module that they cannot use."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    loop = next(block for block in re.findall(r"```python\n(.*?)```", SAMPLERS_PAGE, re.S) if "for epoch in range(6)" in block)
    for shown, tried in (
        ('SAMPLERS["srns"](memory_size=8, expansion_size=32, negatives=1)', f'SAMPLERS["{name}"]()'),
        ("range(6)", "range(2)"),
        ("lr=0.03", "lr=0.0"),  # so that what the last loss was made of can be made again
    ):
        assert loop.count(shown) == 1
        loop = loop.replace(shown, tried)
    here: dict[str, Any] = {"__name__": "docs"}
    if KIND_OF[name] != "any":
        with pytest.raises(srns.ConfigError, match=f"'{name}'"):
            exec(compile(loop, "docs", "exec"), here)
        return
    exec(compile(loop, "docs", "exec"), here)
    drawn, users = here["drawn"], here["users"]
    with torch.no_grad():
        r_ui, r_uj = (here["model"](users, ids.expand(len(users), -1)) for ids in (here["positives"][:, None], drawn.ids))
    blend = torch.zeros_like(r_uj) if drawn.blend is None else drawn.blend
    expected = blended(srns.LOSSES["bpr"], r_ui[:, 0], r_uj, blend, weight=drawn.weight)[0].mean()
    assert here["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def sessions(page: Path) -> list[tuple[str, str]]:
    """The ```bash blocks of a page, each with the block without a language that follows it: what it prints, shortened."""
    found: list[tuple[str, str]] = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
        if language == "bash":
            found.append((block, ""))
        elif language == "" and found and not found[-1][1]:
            found[-1] = found[-1][0], block
    return found


def masked(text: str) -> list[str]:
    """Lines without their numbers, which machines and versions may change, and without spaces that fill up columns; a star at
    the end says something about the numbers."""
    lines = [re.sub(r"[+-]?[0-9][0-9.,]*", "#", " ".join(line.split())).removesuffix(" *") for line in text.splitlines()]
    return [line for line in lines if line.strip("─ ") not in ("", "...")]


@pytest.mark.parametrize("page", [page for page in PAGES if sessions(page)], ids=lambda page: page.name)
def test_shell_sessions_in_the_docs_run_and_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    """All blocks of a page, one after another in one folder; what ends in & is waited for until it answers on port 8000."""
    blocks = sessions(page)
    for name in ("bash", "curl"):
        if not shutil.which(name):
            pytest.skip(f"{name} is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    answering = f"until curl --silent --output {os.devnull} http://127.0.0.1:{port}; do kill -0 $!; sleep 0.2; done\n"
    script = "set -euo pipefail\ntrap '{ kill $(jobs -p) && wait; } 2>/dev/null || true' EXIT\n"
    for number, (block, _) in enumerate(blocks):
        ready = answering if block.rstrip().endswith("&") else ""
        script += f"echo; echo '=== {number}'\n{block.replace('8000', port)}{ready}"
    place = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, **place, "COLUMNS": "80"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    printed = re.split(r"^=== \d+\n", done.stdout, flags=re.M)[1:]
    once = masked("compiling kernels, once for each kind of method; takes about half a minute ...")  # and not here, perhaps
    for (block, shown), output in zip(blocks, printed, strict=True):
        missing = [line for line in masked(shown) if line not in masked(output) + once]
        assert not missing, f"{block}does not print {missing}, but\n{output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
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


def shown(cell: str) -> str:
    """A number as the docs have it."""
    return re.sub(r"(?<![0-9=])0\.", ".", cell)


FIELD = sorted({*(ROOT / "docs" / "field").glob("*.json")} - {ROOT / "docs" / "field" / "costs.json"})


@pytest.mark.parametrize("file", FIELD, ids=lambda file: file.stem)
def test_tables_of_the_field_say_what_the_numbers_beside_them_say(file: Path) -> None:
    (table,) = json.loads(file.read_text())["tables"]
    text = (ROOT / "docs" / "field.md").read_text()
    _, found, below = text.partition(f"**{table['title']}**\n\n")
    assert found
    head, _, *lines = below.partition("\n\n")[0].splitlines()
    columns = [table["columns"].index(column) for column in head.strip("| ").split(" | ")]
    assert lines == ["| " + " | ".join(shown(row[column]) for column in columns) + " |" for row in table["rows"]]


@pytest.mark.parametrize("file", FIELD, ids=lambda file: file.stem)
def test_tables_of_the_field_are_what_the_present_search_finds(file: Path) -> None:
    """Its stages walked through again, with the validation metrics beside the settings that were tried."""
    found = json.loads(file.read_text())["data"]
    for method, (best, stages) in field.METHODS.items():
        made = found[f"{file.stem} {method}"]
        worth = {json.dumps(setting, sort_keys=True): valid for setting, valid in made["tried"]}
        walked = dict.fromkeys([json.dumps(best, sort_keys=True)])
        for changes in stages:
            walked |= dict.fromkeys(json.dumps({**best, **change}, sort_keys=True) for change in changes)
            best = json.loads(max(walked, key=lambda setting: worth[setting]))
        assert walked.keys() == worth.keys(), method
        assert made["setting"] == best, method


def test_the_summary_of_the_field_says_what_its_tables_say() -> None:
    """Means over seeds, and which differences to SRNS hold for all methods together, by Holm's rule step by step."""
    text = (ROOT / "docs" / "methods.md").read_text()
    head, _, *lines = text.partition("| method | ml-1m-paper |")[2].partition("\n\n")[0].splitlines()
    names = ["ml-1m-paper", *head.strip(" |").split(" | ")]
    assert sorted(names) == [file.stem for file in FIELD]
    expected: dict[str, list[str]] = {}
    for name in names:
        found = json.loads((ROOT / "docs" / "field" / f"{name}.json").read_text())["data"]
        left = sorted((each["ahead_of_srns"]["full"]["p_value"], key) for key, each in found.items() if each["ahead_of_srns"])
        sure: set[str] = set()
        while left and left[0][0] * len(left) < 0.05:
            sure.add(left.pop(0)[1])
        for key, each in found.items():
            mean = sum(run["test"]["ndcg@10"] for run in each["runs"]) / len(each["runs"])
            ahead = key in sure and each["ahead_of_srns"]["full"]["difference"] > 0
            cell = shown(f"{mean:.4f}") + ("" if key not in sure else " ▲" if ahead else " ▼")
            expected.setdefault(key.removeprefix(f"{name} "), []).append(cell)
    cells = [line.strip("| ").split(" | ") for line in lines]
    assert {row[0].strip("*"): row[1:] for row in cells} == expected


def test_the_table_of_figure_2_says_what_the_numbers_beside_it_say() -> None:
    text = (ROOT / "docs" / "reproduce.md").read_text()
    for table in json.loads((ROOT / "docs" / "reproduce" / "figure2.json").read_text())["tables"]:
        for *cells, variance, difficulty in table["rows"]:
            errors = ", ".join(each.replace("0.0000", "0") for each in (variance, difficulty))
            assert " | ".join(shown(cell) for cell in [*cells, errors]) in text


def table_below(text: str, name: str) -> list[list[str]]:
    """The cells of the rows of the first table below where a page names a file."""
    rows = text.partition(name)[2].partition("\n|")[2].partition("\n\n")[0].splitlines()[2:]
    return [[shown(cell.replace("**", "").strip()) for cell in row[1:-1].split("|")] for row in rows]


def stored(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "docs" / name).read_text()))


def rows_of(record: dict[str, Any], table: int = 0) -> list[list[str]]:
    return [[shown(cell) for cell in row] for row in record["tables"][table]["rows"]]


def of_table_3() -> dict[str, dict[str, str]]:
    """By method and column."""
    record = stored("reproduce/table3.json")
    return {row[0]: dict(zip(record["tables"][0]["columns"], row, strict=True)) for row in rows_of(record)}


def warmup_cells(record: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Schedule, T0, cells of the values of alpha, and the published ones, whose row follows."""
    rows = rows_of(record)
    return [(*ours[:2], ours[2:], theirs[2:]) for ours, theirs in zip(rows[::2], rows[1::2], strict=True)]


def warmup_rows(record: dict[str, Any]) -> list[list[str]]:
    return [
        [
            schedule if t0 == "0" else f"{schedule}, {t0}",
            *(f"{mine} ({other})" for mine, other in zip(ours, theirs, strict=True)),
        ]
        for schedule, t0, ours, theirs in warmup_cells(record)
    ]


def cost_rows(record: dict[str, Any]) -> list[list[str]]:
    powers = ("power_of_dim", "power_of_items", "power_of_candidates")
    return [
        [f"`{each['sampler']}`", *(each[name].replace("|", "") for name in ("cost", "paper", "engine"))]  # | would end a cell
        + [shown(f"{each['microseconds']:.2f}"), shown(f"{each['to_uniform']:.1f}")]
        + ["" if each[power] is None else shown(f"^{each[power]:.2f}") for power in powers]
        for each in record["samplers"]
    ]


def audit_rows(record: dict[str, Any]) -> list[list[str]]:
    """Over all cases: how far off estimates are, how many are near, and how many intervals hold the truth."""
    rows = []
    for key in (name for name, part in record["found"][0].items() if isinstance(part, dict)):
        number, by = key.replace("by --ask", "by `--ask`").split(" ", 1)
        rms, near, held = (np.array([case[key][part] for case in record["found"]]) for part in ("rms", "within", "covered"))
        off = f"{np.sqrt(np.mean(rms**2)):.1%} ({rms.max():.1%})"
        rows.append([f"{int(number):,}", by, off, f"{near.mean():.1%} ({near.min():.0%})", f"{held.mean():.1%}"])
    return rows


@pytest.mark.parametrize(
    ("page", "file", "rows"),
    [
        ("methods.md", "reproduce/table3.json", rows_of),
        ("methods.md", "field/costs.json", cost_rows),
        ("reproduce.md", "reproduce/warmup-tables-ml-100k.json", warmup_rows),
        ("reproduce.md", "reproduce/warmup-tables-ecom-toy.json", warmup_rows),
        ("audit.md", "audit/worlds.json", audit_rows),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_tables_say_what_the_files_that_they_name_say(page: str, file: str, rows: Any) -> None:
    assert table_below((ROOT / "docs" / page).read_text(), file) == rows(stored(file))


def said_of_table_3() -> list[str]:
    rows = of_table_3()
    behind = {method: row["furthest behind"] for method, row in rows.items() if row["furthest behind"]}
    worst = min(behind, key=lambda method: float(behind[method]))
    return [f"furthest: {worst} {behind[worst]}", *(f"{method} {rows[method]['N@1']}" for method in ("srns", "aobpr", "enmf"))]


def said_of_table_3_in_results() -> list[str]:
    """The same runs, by `benchmarks/accuracy.py`."""
    rows = of_table_3()
    cells = [[rows[method][metric] for metric in ("N@1", "N@3", "R@3")] for method in ("srns", "uniform")]
    return [" | ".join(cell.replace(" ± ", " (") + ")" for cell in row) for row in cells]


def said_of_irgan() -> list[str]:
    row = of_table_3()["irgan"]
    best, seconds = row["best epochs"].split(", "), float(row["seconds"])
    unchanged = f"({best.count('0')} of {len(best)} seeds)"
    return [unchanged, f"an epoch takes {seconds / table3.METHODS['irgan']['epochs']:.0f} s"]


def said_of_figure_1() -> list[str]:
    steady, errors = (check["detail"] for check in stored("reproduce/figure1.json")["checks"])
    ratio = dict(re.findall(r"D = (\d+): ([\d.]+%)", errors))
    return [shown(steady), f"from {ratio['1']} at D = 1 to {ratio['64']} at D = 64"]


def said_of_figure_3() -> list[str]:
    record = stored("reproduce/figure3.json")
    said = []
    for number, name in enumerate(noise.SETUPS):
        ours = {row[0]: row[1] for row in rows_of(record, number)}
        theirs = {each: f"{value:.4f}" for each, value in figure3._published(name).items()}
        both = (", ".join(shown(values[each]) for each in noise.SCHEDULES) for values in (ours, theirs))
        said.append("{} (published {})".format(*both))
    return said + [shown(each["detail"]) for each in record["checks"] if "rises and then falls" in each["claim"]]


def said_of_warmup_tables() -> list[str]:
    """Where the best cells are, and how far they and all others are from the published ones."""
    said, below = [], []
    for name in ("ml-100k", "ecom-toy"):
        found = [
            (float(ours.split()[0]), float(theirs), f"{schedule}, T0 {t0}, alpha {alpha:g}")
            for schedule, t0, *cells in warmup_cells(stored(f"reproduce/warmup-tables-{name}.json"))
            for alpha, ours, theirs in zip(ALPHAS, *cells, strict=True)
        ]
        best, off = max(found), [abs(ours - theirs) for ours, theirs, _ in found]
        below.append(shown(f"{max(theirs for _, theirs, _ in found) - best[0]:.4f}"))
        said.append(f"best cell is the paper's own ({best[2]}), {below[-1]} below the published")
        said.append(shown(f"cells are {min(off):.4f} to {max(off):.4f} from the published ones, {np.mean(off):.3f} on average"))
    return [*said, f"{' and '.join(below)} below"]


def said_of_arithmetic() -> list[str]:
    """`benchmarks/adversarial.py`, methods in turn."""
    rows = stored("adversarial.json")["results"]
    ratios = [shown(f"{row['ratio']:.2f}") for row in rows]
    times = [f"({row['training_ms']:.1f} ms against {row['arithmetic_ms']:.1f})" for row in rows]
    irgan, *others = (f"{ratio} {both}" for ratio, both in zip(ratios, times, strict=True))
    return [irgan.replace(" (", " times as long ("), *others]


def said_of_tuning() -> list[str]:
    """What `srns tune` printed."""
    record = stored("tuning.json")
    metric, trials, test = record["metric"], record["trials"], record["test"]
    count = [each["state"] for each in trials].count
    best = sorted((each for each in trials if each["state"] == "complete"), key=lambda each: -each["value"])[:5]
    rows = {"trial": [str(each["number"]) for each in best], metric: [f"{each['value']:.4f}" for each in best]}
    rows |= {name: [f"{each['params'][name]:g}" for each in best] for name in record["space"]}
    gain = test["difference"][metric]
    return [
        f"The best of {len(trials)} trials on validation ({count('complete')} complete, {count('pruned')} pruned)",
        *(f"\n{name} {' '.join(cells)}\n" for name, cells in rows.items()),
        f"{metric} {gain['difference']:+.4f} against the default recipe ({gain['low']:+.4f} to {gain['high']:+.4f})",
        f"The winner: {record['command']}\n",
        shown(f"from {test['default'][metric]:.4f} to {test['metrics'][metric]:.4f}."),
    ]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("docs/reproduce.md", said_of_table_3),
        ("docs/results.md", said_of_table_3_in_results),
        ("DEVIATIONS.md", said_of_irgan),
        ("docs/reproduce.md", said_of_figure_1),
        ("docs/reproduce.md", said_of_figure_3),
        ("docs/reproduce.md", said_of_warmup_tables),
        ("docs/methods.md", said_of_arithmetic),
        ("docs/tuning.md", said_of_tuning),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_sentences_say_what_the_stored_numbers_say(page: str, said: Any) -> None:
    text = "\n".join(" ".join(line.split()) for line in (ROOT / page).read_text().splitlines())
    assert not [words for words in said() if words not in text]
