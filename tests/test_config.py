"""A run as data: one set of names and defaults, checked, with presets and files below explicit values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from srns.config import RunConfig
from srns.errors import ConfigError
from srns.presets import PRESETS, make_config
from srns.samplers import SRNS


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
        ({"dim": 0}, ["dim = 0: expected at least 1"]),
        ({"dim": "many"}, ["dim = 'many': expected a whole number"]),
        ({"learning_rate": -1}, ["learning_rate = -1: expected more than 0"]),
        ({"moving_average": 1}, ["moving_average"]),
        ({"ks": ""}, ["ks"]),
        ({"ks": "0,5"}, ["ks", "at least 1"]),
        ({"metric": "accuracy"}, ["metric = 'accuracy': expected recall, ndcg,", "such as ndcg@10"]),
        ({"sampler": "magic"}, ["sampler 'magic' is unknown", "uniform"]),
        ({"scorer": "magic"}, ["scorer 'magic' is unknown", "gmf"]),
        ({"memory_sizes": 3}, ["'memory_sizes' is not a field", "sampler 'srns'", "did you mean 'memory_size'?"]),
        ({"xyz": 3}, ["'xyz' is not a field", "expected one of: ", "memory_size"]),
        ({"sampler": "dns", "risk_weight": 3}, ["'risk_weight' is not a field", "belongs to bns", "has candidates, negatives"]),
        ({"scorer": "ease", "risk_weight": 3}, ["scorer 'ease', which draws no negatives", "belongs to samplers: bns"]),
        ({"scorer": "ease", "dims": 3}, ["scorer 'ease', which draws no negatives", "did you mean 'dim'?"]),
        ({"learn_beta": "perhaps"}, ["learn_beta = 'perhaps': expected true or false"]),
        ({"sampler": "in-batch"}, ["did you mean 'in_batch'?"]),
        ({"protocol": "half"}, ["protocol = 'half': expected 'auto', 'full' or 'paper'"]),
    ],
)
def test_bad_values_are_named_with_what_is_expected(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(values)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM dblink('host=db password=s3cret', 'SELECT 1')",
        "SELECT * FROM postgres_scan('postgresql://ann:s3cret@db/shop', 'public', 'clicks')",
    ],
)
def test_a_query_with_a_password_is_refused_without_showing_it(query: str) -> None:
    with pytest.raises(ConfigError, match="query holds a password, and is kept with the run") as caught:
        make_config({"query": query})
    assert "s3cret" not in str(caught.value)
    assert make_config({"query": "SELECT a, b FROM clicks WHERE kind = 'a:b@c' AND password = 'x'"}).query


def test_unknown_preset_and_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'fast'; presets: paper, paper-ml-1m"):
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
    """Appendix B.4: F and reg by data set; lr, batch, epochs and patience for all. The epoch by NDCG@3 (DEVIATIONS)."""
    for name, dim, l2 in (("paper-ml-1m", 32, 0.01), ("paper-pinterest", 16, 0.0), ("paper-ecom", 8, 0.001)):
        config = make_config(preset=name)
        assert (config.dim, config.l2, config.learning_rate, config.batch_size) == (dim, l2, 0.001, 1024)
        assert (config.epochs, config.patience, config.metric, config.moving_average) == (400, 100, "ndcg@3", 0)


def test_an_unknown_split_is_named_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match="split 'sideways' is unknown; expected one of: auto, leave-one-out"):
        make_config({"split": "sideways"})


def test_the_fields_of_the_sampler_are_fields_of_the_run() -> None:
    config = make_config({"memory_size": "24", "negatives": 3, "strategy": "random"})
    assert (config.model_dump()["memory_size"], config.make_sampler().memory_size) == (24, 24)  # type: ignore[attr-defined]
    assert config.model_dump()["expansion_size"] == SRNS().expansion_size, "a saved run says all it was made with"
    assert make_config(config.model_dump(mode="json", exclude_none=True)) == config
    with pytest.raises(ConfigError, match="memory_size = 0: expected at least 1"):
        make_config({"memory_size": 0})
    with pytest.raises(ConfigError, match="negatives 17 exceed memory_size 16"):
        make_config({"negatives": 17})


def test_a_preset_serves_another_sampler_too() -> None:
    config = make_config({"sampler": "uniform"}, preset="paper-ml-1m")
    assert (config.sampler, config.dim, config.loss, config.make_sampler().n_negatives) == ("uniform", 32, "bpr", 1)
    assert "memory_size" not in config.model_dump()
    with pytest.raises(ConfigError, match="'memory_size' is not a field of a run with sampler 'uniform'"):
        make_config({"sampler": "uniform", "memory_size": 3}, preset="paper-ml-1m")


def test_the_noise_of_a_preset_is_meant_for_its_own_sampler() -> None:
    assert make_config({"sampler": "uniform"}, preset="paper-ml-100k").noise is None
    assert make_config({"sampler": "srns"}, preset="paper-ml-100k").noise == 1
    assert make_config({"sampler": "uniform", "noise": 0.5}, preset="paper-ml-100k").noise == 0.5, (
        "refused where data are known"
    )


def test_presets_of_srns_have_the_values_of_the_paper() -> None:
    """Tables 5 and 4 of its appendix: S1, S2, tau, alpha, T0; and sigma 1 for the noise experiments."""
    expected = {
        "paper-ml-1m": (8, 64, 10, 5, 50),
        "paper-pinterest": (16, 64, 10, 5, 50),
        "paper-ecom": (8, 16, 2, 0, 25),
        "paper-ml-100k": (20, 20, 1, 20, 100),
        "paper-ecom-toy": (20, 20, 1, 10, 50),
    }
    for name, values in expected.items():
        sampler = make_config(preset=name).make_sampler()
        assert isinstance(sampler, SRNS)
        found = sampler.memory_size, sampler.expansion_size, sampler.temperature, sampler.variance_weight, sampler.warmup_epochs
        assert found == values, name


def test_l2_follows_the_activity_of_users_unless_it_is_given() -> None:
    assert make_config().l2_for(4_900, 100) == pytest.approx(0.1)
    assert make_config({"l2": "0.5"}).l2_for(4_900, 100) == 0.5
    for wrong in (-1, "much", float("nan")):
        with pytest.raises(ConfigError, match="l2"):
            make_config({"l2": wrong})


def test_the_step_size_falls_along_a_cosine() -> None:
    config = make_config({"epochs": 4, "learning_rate": 1})
    assert [config.learning_rate_at(epoch) for epoch in range(4)] == pytest.approx([1, 0.8536, 0.5, 0.1464], abs=1e-4)
    assert make_config({"schedule": "constant"}).learning_rate_at(19) == make_config().learning_rate


def test_a_preset_says_to_other_methods_what_the_paper_found_for_them() -> None:
    """Table 6, by way of the preset; nothing of what it says to SRNS, but for one negative."""
    advir = make_config({"sampler": "advir"}, preset="paper-ml-1m")
    assert (advir.learning_rate, advir.l2, advir.perturbation, advir.dim) == (5e-4, 1e-4, 0.01, 32)
    assert advir.make_sampler().model_dump().items() >= {"temperature": 1.0, "candidates": 10, "negatives": 1}.items()
    softmax = make_config({"sampler": "softmax"}, preset="paper-ml-1m").make_sampler()
    assert softmax.model_dump()["temperature"] == 1.0, "that of an update of SRNS means something else"
    ease = make_config({"scorer": "ease"}, preset="paper-ml-1m")
    assert (ease.l2, ease.metric) == ("auto", "ndcg@3"), "what is for learning from negatives is not for it"
