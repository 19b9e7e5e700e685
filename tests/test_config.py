"""A run as data: one set of names and defaults, checked, with presets and files below explicit values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from srns.config import PRESETS, RunConfig, make_config
from srns.errors import ConfigError


def test_explicit_values_win_over_file_and_file_over_preset(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("dim = 16\nepochs = 7\n")
    config = make_config({"dim": "8"}, preset="paper-ml-1m", file=file)
    assert (config.dim, config.epochs, config.l2) == (8, 7, 0.01)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid(name: str) -> None:
    assert make_config(preset=name).model_dump().items() >= PRESETS[name].items()


def test_json_form_is_the_same_run() -> None:
    config = make_config({"ks": "10,5,5", "min_weight": 4})
    assert config.ks == (5, 10)
    assert make_config(config.model_dump(mode="json", exclude_none=True)) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dim": 0}, ["dim = 0", "greater than or equal to 1"]),
        ({"dim": "many"}, ["dim = 'many'", "integer"]),
        ({"learning_rate": -1}, ["learning_rate = -1"]),
        ({"moving_average": 1}, ["moving_average"]),
        ({"ks": ""}, ["ks"]),
        ({"ks": "0,5"}, ["ks", "at least 1"]),
        ({"metric": "accuracy"}, ["metric = 'accuracy'"]),
        ({"sampler": "magic"}, ["sampler 'magic' is unknown", "uniform"]),
        ({"scorer": "magic"}, ["scorer 'magic' is unknown", "gmf"]),
        ({"memory_sizes": 3}, ["'memory_sizes' is not a field", "sampler 'uniform'", "learning_rate"]),
        ({"protocol": "half"}, ["protocol = 'half'", "full"]),
    ],
)
def test_bad_values_are_named_with_what_is_expected(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(values)
    for word in words:
        assert word in str(caught.value)


def test_unknown_preset_and_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'fast'; presets: paper-ml-1m"):
        make_config(preset="fast")
    with pytest.raises(ConfigError, match=r"cannot read config .*absent\.toml"):
        make_config(file=tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("dim = = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        make_config(file=broken)


def test_every_field_says_what_it_is_and_where_it_belongs() -> None:
    for name, field in RunConfig.model_fields.items():
        assert field.description, name
        assert isinstance(field.json_schema_extra, dict), name
        assert field.json_schema_extra["panel"]


def test_batches_shrink_on_small_data() -> None:
    sizes = {n: make_config().batch_size_for(n) for n in (1, 100, 6_400, 65_536, 10**8)}
    assert sizes == {1: 1, 100: 1, 6_400: 100, 65_536: 1024, 10**8: 1024}
    assert make_config({"batch_size": 512}).batch_size_for(10**6) == 512
    assert make_config({"batch_size": 512}).batch_size_for(100) == 100


def test_presets_of_the_paper_have_its_values() -> None:
    """Appendix B.4: F and reg by data set; lr, batch, epochs and patience for all; the epoch by validation NDCG@1."""
    for name, dim, l2 in (("paper-ml-1m", 32, 0.01), ("paper-pinterest", 16, 0.0), ("paper-ecom", 8, 0.001)):
        config = make_config(preset=name)
        assert (config.dim, config.l2, config.learning_rate, config.batch_size) == (dim, l2, 0.001, 1024)
        assert (config.epochs, config.patience, config.metric, config.moving_average) == (400, 100, "ndcg@1", 0)


def test_an_unknown_split_is_named_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match="split 'sideways' is unknown; expected one of: auto, leave-one-out"):
        make_config({"split": "sideways"})
