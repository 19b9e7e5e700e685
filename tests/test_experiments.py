"""Tables and figures of the paper, measured on little data."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from srns.cli import app
from srns.errors import ConfigError
from srns.experiments import sampler_costs
from srns.experiments.sampler_costs import Cell, cells, summary
from srns.samplers import SAMPLERS


def test_costs_of_samplers_are_measured_along_each_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_costs, "SECONDS", 0.01)
    grid = {"dim": (8, 32), "items": (500, 4_000), "candidates": (4, 16)}
    found = list(cells(["uniform", "dns"], grid))
    points = {name: {(c.dim, c.items, c.candidates) for c in found if c.sampler == name} for name in ("uniform", "dns")}
    assert points["uniform"] == {(32, 4_000, 0), (8, 4_000, 0), (32, 500, 0)}, "it has no candidates to vary"
    assert points["dns"] == {(32, 4_000, 16), (8, 4_000, 16), (32, 500, 16), (32, 4_000, 4)}
    assert all(cell.microseconds > 0 and cell.engine == "fused" for cell in found)
    with pytest.raises(ConfigError, match="no sampler 'pdq'"):
        next(cells(["pdq"]))


def test_powers_are_those_of_the_curve() -> None:
    found = [Cell("uniform", "fused", 32, 4_000, 0, 2.0)]
    for dim, items, n in (
        (8, 4_000, 16),
        (32, 4_000, 16),
        (128, 4_000, 16),
        (32, 1_000, 16),
        (32, 16_000, 16),
        (32, 4_000, 64),
    ):
        found.append(Cell("dns", "fused", dim, items, n, 0.01 * dim * n**0.5 * items**0))
    uniform, dns = summary(found)
    assert uniform["to_uniform"] == 1
    assert math.isnan(uniform["power_of_dim"])
    assert dns["to_uniform"] == pytest.approx(0.64)
    assert [dns[f"power_of_{axis}"] for axis in ("dim", "items", "candidates")] == pytest.approx([1, 0, 0.5])


def test_bench_prints_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.setattr(sampler_costs, "SECONDS", 0.01)
    monkeypatch.setattr(sampler_costs, "GRID", {"dim": (8, 32), "items": (4_000,), "candidates": (16,)})
    picture = tmp_path / "costs.png"
    shown = {}
    for width in (80, 140):
        monkeypatch.setattr("srns.cli.studying.out", Console(width=width))
        result = CliRunner().invoke(app, ["bench", "samplers", "--sampler", "popularity", "--plot", str(picture)])
        assert result.exit_code == 0, result.output
        shown[width] = result.output
        assert sum(line.strip().startswith("popularity ") for line in result.output.splitlines()) == 1
        assert max(map(len, result.output.splitlines())) <= width
    assert "K log" in shown[140]
    assert "K log" not in shown[80], "formulas would leave no room for numbers"
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
    monkeypatch.setattr(sampler_costs, "cells", lambda names: pytest.fail("measured"))
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
    for name in filter(sampler_costs.measurable, SAMPLERS):
        for candidates in sampler_costs.GRID["candidates"]:
            config = sampler_costs.config_of(name, 8, candidates)
            field = sampler_costs.candidate_field(name)
            assert field is None or getattr(config.make_sampler(), field) == candidates
