"""Tables and figures of the paper, measured on little data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from srns.cli import app
from srns.config import RunConfig
from srns.drawing import look
from srns.engines import make_engine
from srns.errors import ConfigError
from srns.experiments import table1_runs
from srns.experiments.sampler_costs import summary
from srns.experiments.table1_runs import Cell, cells
from srns.samplers import SAMPLERS
from srns.simulation import simulate


def test_costs_of_samplers_are_measured_along_each_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table1_runs, "SECONDS", 0.01)
    grid = {"dim": (8, 32), "items": (500, 4_000), "candidates": (4, 16)}
    found = list(cells(["uniform", "dns"], grid))
    points = {name: {(c.dim, c.items, c.candidates) for c in found if c.sampler == name} for name in ("uniform", "dns")}
    assert points["uniform"] == {(32, 4_000, 0), (8, 4_000, 0), (32, 500, 0)}, "it has no candidates to vary"
    assert points["dns"] == {(32, 4_000, 16), (8, 4_000, 16), (32, 500, 16), (32, 4_000, 4)}
    assert all(cell.microseconds > 0 and cell.engine == "fused" for cell in found)
    with pytest.raises(ConfigError, match="no sampler 'pdq'"):
        next(cells(["pdq"]))


def test_a_busy_while_hits_all_cells_of_a_sampler_and_none_of_their_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of which a clock and the seconds of an epoch are known, five times slower for a while."""
    now, order = [0.0], []

    class Known:
        name = "known"

        def __init__(self, config: Any, train: Any) -> None:
            self.cell = config.sampler, config.dim, train.n_items
            self.seconds = 0.001 * config.dim * (2 if config.sampler == "dns" else 1)

        def run_epoch(self, epoch: int) -> None:
            if order[-1:] != [self.cell]:
                order.append(self.cell)
            now[0] += self.seconds * (5 if 0.7 < now[0] < 1.4 else 1)

    monkeypatch.setattr(table1_runs, "make_engine", Known)
    monkeypatch.setattr(table1_runs.time, "process_time", lambda: now[0])
    monkeypatch.setattr(table1_runs, "SECONDS", 0.6)
    found = list(cells(["dns"], {"dim": (8, 32), "items": (4_000,)}))
    once = [("uniform", 32, 4_000), ("dns", 8, 4_000), ("dns", 32, 4_000)]
    assert order == once * (1 + table1_runs.ROUNDS), "each compiles, and then has its turns"
    assert [cell.microseconds / cell.uniform for cell in found] == pytest.approx([0.5, 2.0])


def test_advir_is_measured_with_its_second_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    train = simulate(n_users=30, n_items=40, n_interactions=300, seed=0).interactions
    losses, loss_of = {}, RunConfig.loss_of
    for name in ("rns_as", "advir"):
        asked: list[int] = []
        monkeypatch.setattr(RunConfig, "loss_of", lambda *args, asked=asked: (asked.append(1), loss_of(*args))[1])
        make_engine(table1_runs.config_of(name, 8, 4), train).run_epoch(0)
        losses[name] = len(asked)
    assert losses["advir"] == 2 * losses["rns_as"] > 0


def test_powers_are_those_of_the_curve() -> None:
    found = [Cell("uniform", "fused", 32, 4_000, 0, 2.0, 2.0)]
    for dim, items, n in (
        (8, 4_000, 16),
        (32, 4_000, 16),
        (128, 4_000, 16),
        (32, 1_000, 16),
        (32, 16_000, 16),
        (32, 4_000, 64),
    ):
        found.append(Cell("dns", "fused", dim, items, n, 0.01 * dim * n**0.5 * items**0, 1.6))
    uniform, dns = summary(found)
    assert uniform["to_uniform"] == 1
    assert math.isnan(uniform["power_of_dim"])
    assert dns["to_uniform"] == pytest.approx(0.8), "beside uniform negatives measured in turn with it"
    assert [dns[f"power_of_{axis}"] for axis in ("dim", "items", "candidates")] == pytest.approx([1, 0, 0.5])


def test_bench_prints_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.setattr(table1_runs, "SECONDS", 0.01)
    monkeypatch.setattr(table1_runs, "GRID", {"dim": (8, 32), "items": (4_000,), "candidates": (16,)})
    picture = tmp_path / "costs.png"
    shown = {}
    for width in (80, 140):
        monkeypatch.setattr("srns.cli.studying.out", Console(width=width))
        result = CliRunner().invoke(app, ["bench", "samplers", "--sampler", "popularity", "--plot", str(picture)])
        assert result.exit_code == 0, result.output
        shown[width] = result.output
        assert max(map(len, result.output.splitlines())) <= width
    for width, tables in {80: 2, 140: 1}.items():  # formulas would leave no room for numbers
        assert sum(line.strip().startswith("popularity ") for line in shown[width].splitlines()) == tables
        assert "K log" in shown[width]
        assert "B T" in shown[width], "of uniform, by the paper"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert CliRunner().invoke(app, ["bench", "ovens"]).exit_code == 2
    both = tmp_path / "made" / "v2"
    result = CliRunner().invoke(app, ["bench", "samplers", "--sampler", "uniform", "--plot", str(both)])
    assert result.exit_code == 0, result.output
    assert f"drawn to {both}.png and {both}.svg" in " ".join(result.output.split()).replace("/ ", "/")
    result = CliRunner().invoke(app, ["bench", "samplers", "--sampler", "uniform", "--plot", str(both), "--json"])
    plots = json.loads(result.stdout)["plots"]
    assert sorted(plots) == sorted(map(str, both.parent.iterdir())), "what was written is what is said"


def test_bench_refuses_a_plot_it_cannot_write_before_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.setattr(table1_runs, "cells", lambda names: pytest.fail("measured"))
    (tmp_path / "file").touch()
    (tmp_path / "there.svg").mkdir()
    for name, message in {
        "costs.txt": "ends in .txt; figures are .png, .svg, .pdf",
        "file/costs.png": "the folder cannot be made",
        "there.svg": "there.svg cannot be written",
        "there": "there.svg cannot be written",
    }.items():
        result = CliRunner().invoke(app, ["bench", "samplers", "--plot", str(tmp_path / name)])
        assert (result.exit_code, message in " ".join(result.stderr.split())) == (2, True), result.output
    assert {path.name for path in tmp_path.iterdir()} == {"file", "there.svg"}, "nothing is written"


def test_every_sampler_can_be_measured_all_over_the_grid() -> None:
    for name in filter(table1_runs.measurable, SAMPLERS):
        for candidates in table1_runs.GRID["candidates"]:
            config = table1_runs.config_of(name, 8, candidates)
            field = table1_runs.candidate_field(name)
            assert field is None or getattr(config.make_sampler(), field) == candidates


def test_lines_of_a_figure_can_be_told_apart_by_colour_and_marker() -> None:
    looks = [look(number) for number in range(60)]
    assert len({(each["color"], each["marker"]) for each in looks}) == len(looks)
    again = [each for each in looks if each["color"] == looks[0]["color"]]
    assert len({each["linestyle"] for each in again[:4]}) == 4
