"""What a search may vary, how `--vary` is read and refused, what mattered, and the command of a winner."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from srns.cli import app
from srns.config import RunConfig
from srns.experiments.paper_search import paper_stages
from srns.options import train_command, with_config_flags
from srns.presets import PRESETS, make_config
from srns.samplers import SAMPLERS
from srns.scorers import SCORERS, WITHOUT_NEGATIVES
from srns.tuning.space import BY_SAMPLER, BY_SCORER, Choice, Range, Recipe, default_space, parse_space
from srns.tuning.trial import Trial

pytest.importorskip("optuna", reason="Optuna is not installed")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--vary", "dim"], "--vary 'dim': expected FIELD=LOW:HIGH, FIELD=LOW:HIGH:log or FIELD=A,B,C"),
        (["--vary", "=1:2"], "expected FIELD=LOW:HIGH"),
        (["--vary", "dim=8:4"], "the range must begin below its end, found 8 and 4"),
        (["--vary", "dim=8:8"], "the range must begin below its end"),
        (["--vary", "dim=8:16:lin"], "expected FIELD=LOW:HIGH"),
        (["--vary", "dim=8:16:log:log"], "expected FIELD=LOW:HIGH"),
        (["--vary", "dim=8:many"], "--vary dim=8:many: dim = 'many'"),
        (["--vary", "dim=0:8"], "--vary dim=0:8: dim = '0'"),
        (["--vary", "dim=8:9.5"], "dim = '9.5'"),
        (["--vary", "dim=8:5000"], "dim = '5000'"),
        (["--vary", "l2=0:1:log"], "a range on a log scale must begin above 0, found 0.0"),
        (["--vary", "l2=auto:1"], "'auto' is no number"),
        (["--vary", "learning_rate=0.1:inf"], "'inf' is no number"),
        (["--vary", "loss=bpr:hinge"], "'bpr' is no number"),
        (["--vary", "dim=8"], "expected at least two different values"),
        (["--vary", "dim=8,8"], "expected at least two different values"),
        (["--vary", "loss=bpr,kind"], "loss 'kind' is unknown"),
        (["--vary", "flavour=1:2"], "'flavour' is not a field of a run with sampler 'srns'"),
        (["--vary", "candidates=8:64"], "it belongs to rns_as, advir, dns"),
        (["--sampler", "dns", "--vary", "memory_size=4:8"], "'memory_size' is not a field of a run with sampler 'dns'"),
        (["--vary", "seed=1:9"], "'seed' is not searched; what can be: scorer, dim"),
        (["--vary", "metric=ndcg@1,ndcg@3"], "'metric' is not searched"),
        (["--vary", "split=random,temporal"], "'split' is not searched"),
        (["--vary", "variance_weight=1:9"], "variance_weight decides nothing, since all of a memory is used"),
        (["--vary", "dim=4:8", "--dim", "4"], "'dim' is also fixed, by a flag or --set"),
        (["--vary", "dim=4:8", "--set", "dim=4"], "'dim' is also fixed"),
        (["--vary", "dim=4:8", "--vary", "dim=2:4"], "'dim' is varied twice"),
        (["--scorer", "popularity"], "nothing to search: scorer 'popularity' has no settings"),
        (["--scorer", "ease", "--l2", "3"], "nothing to search"),
        (["--search", "luck"], "--search 'luck': expected tpe or paper"),
        (["--search", "paper", "--trials", "9"], "--trials and --minutes go with --search tpe"),
        (["--search", "paper", "--vary", "dim=8,16"], "the paper's search has no range of 'dim'"),
        (["--search", "paper", "--vary", "l2=0:1"], "takes lists of values, such as l2=A,B,C"),
        (["--search", "paper", "--vary", "expansion_ratio=0.5"], "expected whole numbers"),
        (["--search", "paper", "--expansion-size", "8"], "fix it with --vary expansion_ratio=N"),
        (["--search", "paper", "--l2", "0", "--vary", "l2=0,1"], "it is also fixed"),
        (["--search", "paper", "--sampler", "dns"], "the paper did not search sampler 'dns'"),
        (["--trials", "0"], "Invalid value for '--trials'"),
        (["--preset", "slow"], "unknown preset 'slow'"),
        (["--metric", "fun@3"], "metric = 'fun@3'"),
    ],
)
def test_mistakes_are_explained(
    args: list[str], message: str, clicks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["tune", clicks, *args])
    assert result.exit_code == 2, (result.stdout, result.exception)
    assert isinstance(result.exception, SystemExit)
    assert message in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == [], "nothing half done stays behind"


def test_ranges_are_read_as_their_fields_are() -> None:
    recipe = Recipe({"negatives": 2})
    read = parse_space(["dim=8:64:log", "--learning-rate=1e-3:0.1", "loss=bpr, softmax", "learn_beta=true,false"], recipe)
    assert read == {
        "dim": Range(8, 64, log=True, whole=True),
        "learning_rate": Range(0.001, 0.1),
        "loss": Choice(("bpr", "softmax")),
        "learn_beta": Choice((True, False)),
    }
    assert parse_space(["variance_weight=1:9"], recipe) == {"variance_weight": Range(1.0, 9.0)}
    assert parse_space(["sampler=srns,uniform,dns"], Recipe({})) == {"sampler": Choice(("srns", "uniform", "dns"))}


def ends(entry: Range | Choice) -> list[Any]:
    return [entry.settle(entry.low), entry.settle(entry.high)] if isinstance(entry, Range) else list(entry.values)


@pytest.mark.parametrize(("scorer", "sampler"), [*((each, "srns") for each in SCORERS), *(("gmf", each) for each in SAMPLERS)])
def test_the_default_space_is_of_fields_that_there_are_around_their_defaults(scorer: str, sampler: str) -> None:
    assert BY_SAMPLER.keys() == SAMPLERS.keys()
    assert BY_SCORER.keys() == SCORERS.keys()
    recipe = Recipe({"scorer": scorer, "sampler": sampler})
    config = recipe.config()
    if scorer == "popularity":
        return
    l2 = config.l2_for(50_000, 1_000)
    space = default_space(recipe, l2)
    assert set(space) <= {"l2", *RunConfig.model_fields, *SAMPLERS[sampler].model_fields}
    if scorer in WITHOUT_NEGATIVES:
        assert set(space) <= set(WITHOUT_NEGATIVES[scorer])
    for name, entry in space.items():
        assert entry.contains(l2 if name == "l2" else getattr(config, name)), name
        for value in ends(entry):
            assert getattr(recipe.config({name: value}), name) == value
    for pick in (min, max):  # all at one end at once go together too
        recipe.config({name: pick(ends(entry)) for name, entry in space.items()})


def test_fixed_fields_leave_the_space_and_variance_enters_it_where_it_decides() -> None:
    assert "variance_weight" not in default_space(Recipe({}), 0.1)
    space = default_space(Recipe({"negatives": 8, "dim": 16}, "paper"), 0.1)
    assert {"variance_weight", "warmup_epochs"} <= set(space)
    assert not {"dim", "negatives"} & set(space)
    assert space["memory_size"] == Range(8, 64, log=True, whole=True), "a memory holds at least the negatives taken from it"
    assert space["warmup_epochs"] == Range(0, 400, whole=True)


def test_the_default_is_tried_only_where_the_space_has_it() -> None:
    from srns.tuning.tpe import default_params

    space = {"l2": Range(0.01, 1.0, log=True), "dim": Choice((64, 128))}
    assert default_params(Recipe({}), space, 0.123456) == {"l2": 0.123, "dim": 128}
    assert default_params(Recipe({}), {**space, "l2": Range(5.0, 6.0)}, 0.123456) is None
    assert default_params(Recipe({"dim": 32}), space, 0.123456) is None


def parsed(words: list[str]) -> RunConfig:
    """The configuration that the real command line makes of some words."""
    seen: list[dict[str, Any]] = []
    small = typer.Typer()

    @small.command()
    @with_config_flags
    def train(data: Annotated[str, typer.Argument()], fields: dict[str, Any]) -> None:
        seen.append(fields)

    result = CliRunner().invoke(small, words)
    assert result.exit_code == 0, result.output
    return make_config(seen[0])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_winners_command_means_its_configuration(sampler: str) -> None:
    recipe = Recipe({"sampler": sampler, "epochs": 7, "ks": "1,5", "learn_beta": True, "user_column": "who is it"})
    space = default_space(recipe, 0.1234)
    for pick in (min, max):
        config = recipe.config({name: pick(ends(entry)) for name, entry in space.items()})
        words = shlex.split(train_command("a file's name.csv", config))
        assert words[:3] == ["srns", "train", "a file's name.csv"]
        assert parsed(words[2:]) == config
    for preset in PRESETS:
        words = shlex.split(train_command("x", make_config(preset=preset)))
        assert parsed(words[2:]) == make_config(preset=preset)


def test_importance_finds_what_matters() -> None:
    from srns.tuning.importance import importance

    rng = np.random.default_rng(0)
    space = {"learning_rate": Range(1e-4, 1.0, log=True), "dim": Choice((8, 16)), "l2": Range(0.0, 1.0)}
    trials = []
    for number in range(60):
        params = {"learning_rate": float(10 ** rng.uniform(-4, 0)), "dim": int(rng.choice([8, 16])), "l2": float(rng.random())}
        value = -abs(np.log10(params["learning_rate"]) + 2) + 0.1 * params["l2"]
        trials.append(Trial(number, "pruned" if value < -1.5 else "complete", params, float(value)))
    shares = importance(trials, space)
    assert next(iter(shares)) == "learning_rate"
    assert shares["learning_rate"] > 0.8
    assert importance(trials[:4], space) == {}, "too few to tell"
    assert importance([replace(each, value=0.5) for each in trials], space) == {}


def test_importance_in_stages_is_that_of_each_stage() -> None:
    """What a planted effect decides: one field a stage, and a later stage is far better whatever its fields."""
    from srns.tuning.importance import importance_by_stage

    rates, taus = {5e-4: 0.0, 1e-3: 0.1, 5e-3: 0.3, 1e-2: 0.2}, {0.5: 0.1, 1.0: 0.4, 2.0: 0.2, 10.0: 0.0}
    search, scores, trials = paper_stages("real"), {}, []
    while settings := search.next(scores):
        stage = search.stages(scores)[-1].name
        for setting in settings:
            params = dict(setting)
            value = 0.01 * params["l2"] + rates[params["learning_rate"]]
            if params["sampler"] == "srns":
                ratio = params["expansion_size"] / params["memory_size"]
                value += 1 + taus[params["temperature"]] + 0.001 * ratio + 0.01 * params["variance_weight"]
            scores[setting] = value
            trials.append(Trial(len(trials), "complete", params, value, note=stage))
    shares = importance_by_stage(trials)
    stages = [["learning_rate", "l2"], ["temperature", "memory_size", "expansion_size"], ["variance_weight", "warmup_epochs"]]
    assert shares.keys() == {name for names in stages for name in names}
    for first, *rest in stages:
        assert shares[first] > 0.9
        assert shares[first] + sum(shares[name] for name in rest) == pytest.approx(1)
    assert importance_by_stage(trials[:16]) == {name: shares[name] for name in stages[0]}, "later stages change nothing"
    assert importance_by_stage(trials[:7]) == {}, "too few to tell"
    failed = replace(trials[0], state="failed", value=None, note="loss is not finite")
    assert importance_by_stage([failed, *trials[1:16]]).keys() == set(stages[0])


def test_importance_in_stages_is_that_of_the_searched_scorer_where_it_varies_the_same() -> None:
    """Planted: learning_rate decides for GMF, which is tried first, hidden_layers for the perceptron that is searched for."""
    from srns.tuning.importance import importance, importance_by_stage

    search, scores, trials = paper_stages("real", "mlp"), {}, []
    while settings := search.next(scores):
        stage = search.stages(scores)[-1].name
        for setting in settings:
            params = dict(setting)
            value = 10 * params["learning_rate"] + 0.01 * params["l2"]
            if "scorer" in params:
                value = 0.2 * params["hidden_layers"] + 0.01 * params["learning_rate"] + 0.001 * params["l2"]
            elif params["sampler"] == "srns":
                value += 0.1 * params["temperature"] + 0.01 * params["variance_weight"]
            scores[setting] = value
            trials.append(Trial(len(trials), "complete", params, value, note=stage))
    shares = importance_by_stage(trials)
    memories, weights = ("temperature", "memory_size", "expansion_size"), ("variance_weight", "warmup_epochs")
    assert shares.keys() == {*search.mlp, *memories, *weights}, "no field is left out"
    alone = [trial for trial in trials if trial.note == "uniform with MLP"]
    fields = {name: Choice(values) for name, values in search.mlp.items()}
    by_hand = importance([replace(each, params={name: each.params[name] for name in fields}) for each in alone], fields)
    assert {name: shares[name] for name in fields} == pytest.approx(by_hand)
    assert shares["hidden_layers"] > 0.9
    for names in (memories, weights):
        assert sum(shares[name] for name in names) == pytest.approx(1), "as without a perceptron"

    gone = [each if each not in alone else replace(each, state="failed", value=None, note="not finite") for each in trials[:-1]]
    assert importance_by_stage(gone)["learning_rate"] > 0.9, "where the searched scorer tells nothing, GMF does"
    constant = [each for each in trials if each not in alone or each.params["l2"] == 0.0]
    shares = importance_by_stage(constant)
    assert shares.keys() == {*search.mlp, *memories, *weights}
    assert shares["hidden_layers"] > 0.9, "what GMF alone varies comes from there, and takes nothing else's place"


def test_stages_of_gmf_train_gmf_also_where_a_perceptron_is_searched() -> None:
    from srns.tuning.plans import Asked, Paper

    plan = Paper(Asked("clicks", {"scorer": "mlp", "init": "runs/perceptron"}, search="paper"))
    scores: dict[Any, float] = {}
    while settings := plan.search.next(scores):
        for setting in settings:
            config = plan.config_of(dict(setting))
            searched = "hidden_layers" in dict(setting)
            assert config.scorer == ("mlp" if searched else "gmf")
            assert config.init == ("runs/perceptron" if searched else None), "GMF cannot start from a perceptron"
            scores[setting] = 0.0
    assert len(scores) == plan.search.most - 21, "the first of equals: the smallest memory has one neighbour"
    for scorer in ({}, {"scorer": "gmf"}):
        plan = Paper(Asked("clicks", {**scorer, "init": "runs/gmf"}, search="paper"))
        config = plan.config_of(dict(plan.search.next({})[0]))
        assert (config.scorer, config.init) == ("gmf", "runs/gmf")


def test_the_default_of_a_search_of_advir_is_not_that_of_rns_as() -> None:
    from srns.tuning.tpe import default_params

    recipe = Recipe({"sampler": "advir"})
    space = default_space(recipe, 0.1)
    assert (default_params(recipe, space, 0.1) or {})["perturbation"] == 0.01
    assert recipe.config({"perturbation": 0.0}).perturbation == 0.0
    assert Recipe({"sampler": "advir", "perturbation": 0.0}).config().perturbation == 0.0, "fixed"
    assert Recipe({"sampler": "advir"}, "paper").config().perturbation == 0.01
    assert Recipe({}).config({"sampler": "advir"}).perturbation == 0.01, "where samplers are searched"
    assert Recipe({}).config({"sampler": "rns_as"}).perturbation == 0.0
    assert Recipe({"sampler": "advir", "scorer": "lightgcn"}).config().perturbation == 0.0, "which has nothing to move"
