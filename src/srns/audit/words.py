"""What an audit found, in sentences for people who have not read the paper, and in numbers for programs."""

from __future__ import annotations

import math
from typing import Any

from srns.audit.findings import WORTH, Contestant, Finding, Findings, Measured, over_seeds
from srns.options import train_command
from srns.presets import make_config
from srns.samplers import SAMPLERS

NEAR = 0.03  # a chance of telling two apart that is so near to one half tells nothing
METRICS = {
    "ndcg": "how many of a user's hidden positives are among the first {k} recommended, the upper places counting more",
    "recall": "which share of a user's hidden positives is among the first {k} recommended",
    "hit": "whether any of a user's hidden positives is among the first {k} recommended",
    "precision": "which share of the first {k} recommended are hidden positives",
    "mrr": "how high the first hidden positive stands among the first {k} recommended: 1 over its place",
    "map": "how many of a user's hidden positives are among the first {k} recommended, and how few others above them",
}
# What samplers do, for those who have never heard of any; of others their own description is shown.
DOES = {
    "uniform": "any item that the user did not touch, all equally likely",
    "popularity": "untouched items, popular ones more often",
    "dns": "of some blindly picked untouched items, those that the model scores highest",
}


def explained(metric: str) -> str:
    """What a metric measures.

    >>> explained("hit@5")
    "hit@5: whether any of a user's hidden positives is among the first 5 recommended, from 0 to 1, in the mean over users"
    """
    name, k = metric.split("@")
    return f"{metric}: {METRICS[name].format(k=k)}, from 0 to 1, in the mean over users"


def headline(found: Findings) -> str:
    """The answer in one sentence."""
    name = found.recommendation.chosen.contestant.name
    if found.alone:
        kind = found.recommendation.chosen.contestant.kind
        return f"Only {kind} was looked at: whether another sampler suits these data better is not known."
    if name == "uniform":
        return "Stay with uniform negatives: no other sampler made measurably better models from these data."
    gain = found.recommendation.chosen.to_uniform
    if gain is None or gain.low <= 0:
        return f"Use {name}: no other sampler made measurably better models from these data."
    return f"Use {name}: it made measurably better models from these data than uniform negatives."


def answer(found: Findings) -> list[str]:
    """The answer first: what to use, what it does to items that users like, and what variance is worth here."""
    once = "Each sampler was trained once: another seed may tell otherwise, which --seeds 3 would show."
    variance = _variance(found)
    said = [_choice(found), _mistakes(found), _in_all(found), *[variance] * bool(variance)]
    said += [once] * (found.facts["seeds"] == 1)
    learning = [each.contestant.name for each in found.each if SAMPLERS[each.contestant.values["sampler"]].learns]
    if learning:
        said.append(
            f"{_listed(learning)} learned from the first epoch on here, like the others. As published, such samplers go on "
            "from a model trained with uniform negatives (srns train --init), and may do better so."
        )
    return said


def to_train(found: Findings, dataset: str) -> str:
    """The command that trains with the sampler to use."""
    return train_command(dataset, make_config(dict(found.recommendation.chosen.contestant.values)))


def short(value: Measured, form: str = ".4f") -> str:
    """A number with its interval."""
    if not math.isfinite(value.low):
        return format(value.value, form)
    return f"{value.value:{form}} ({value.low:{form}} to {value.high:{form}})"


def _choice(found: Findings) -> str:
    best, chosen, uniform = found.recommendation.best, found.recommendation.chosen, found.named("uniform")
    metric, name = found.facts["metric"], chosen.contestant.name
    if found.alone:
        of_which = "Its" if len(found.each) == 1 else f"Of {name}, the"
        return f"{headline(found)} {of_which} {metric} is {chosen.metric.value:.4f}."
    said = f"{'Stay with uniform negatives' if name == 'uniform' else f'Use {name}'}: {metric} {chosen.metric.value:.4f}"
    if chosen.to_uniform is not None and uniform is not None:
        base = uniform.metric.value or 1.0
        share = Measured(*(part / base for part in chosen.to_uniform))
        said += f" against {uniform.metric.value:.4f} with uniform negatives, {short(share, '+.1%')}"
    if others := [other for other in found.recommendation.as_good if other != name]:
        said += f". {_listed(others)} {'is' if len(others) == 1 else 'are'} not measurably better"
        if best is not chosen:
            little = chosen.behind.value < WORTH * chosen.metric.value
            why = "too little to matter" if little else "which more seeds or users may show to be more than luck"
            ahead = "it is" if len(others) == 1 else f"the highest, {best.contestant.name}, is"
            said += f": {ahead} ahead by {short(chosen.behind, '+.4f')}, {why}"
    return said + "."


def _mistakes(found: Findings) -> str:
    chosen = found.recommendation.chosen
    most = max(found.each, key=lambda each: each.to_chance.value)
    said = (
        f"{chosen.contestant.name} takes items that users like, and that were hidden from it, for negatives {_times(chosen)} "
        f"chance would; "
        f"{chosen.hidden.value:.2%} of what it draws are such mistakes."
    )
    if most is not chosen:
        said += f" The most are made by {most.contestant.name}, {_times(most)} chance."
    return said


def _times(each: Finding) -> str:
    return f"{each.to_chance.value:.1f} times ({each.to_chance.low:.1f} to {each.to_chance.high:.1f}) as often as"


def _in_all(found: Findings) -> str:
    chosen = found.recommendation.chosen
    if chosen.errors is None:
        return (
            "How many of all drawn negatives users would like cannot be told from interactions alone: an item that somebody "
            "never saw looks like one they dislike. If users are asked it can: srns audit --ask writes the questions."
        )
    said = f"By the answers, users like {short(chosen.errors, '.1%')} of the negatives that {chosen.contestant.name} draws"
    uniform = found.named("uniform")
    if uniform is not None and uniform is not chosen and uniform.errors is not None:
        said += f", and {short(uniform.errors, '.1%')} of uniform ones"
    return said + "."


def _variance(found: Findings) -> str:
    advised = found.recommendation
    other = advised.weight is not None and advised.chosen.contestant.variance_weight is None
    weight = f"{'If you take srns-variance all the same: ' * other}{weight_of(found)}"
    return " ".join(filter(None, (_steadier(found), weight)))


def _steadier(found: Findings) -> str:
    """Whether hidden positives score more steadily; nothing of one seed, which does not tell how much of it is luck."""
    reference = found.named("uniform") or found.each[0]
    told = over_seeds(reference.late("detection", "steady_hard"))
    if not math.isfinite(told.low):
        return ""
    guess = abs(told.value - 0.5) < NEAR or told.low <= 0.5 <= told.high
    steadier = "no more steadily" if guess else "more steadily" if told.value > 0.5 else "less steadily"
    interval = f"95% over seeds: {max(0.0, told.low):.0%} to {min(1.0, told.high):.0%}"
    return (
        f"While the model learns, hidden positives score {steadier} than other untouched items that score as high: of two, the "
        f"steadier is the hidden positive in {told.value:.0%} of cases ({interval}), "
        f"{'no more than a guess, which has 50%' if guess else 'where a guess has 50%'}."
    )


def weight_of(found: Findings) -> str:
    """What is to be said of the variance weight."""
    weight = found.recommendation.weight
    if weight is None:
        return ""
    if weight.best == 0:
        return "Variance weight: 0, selection by score alone, gave the best models."
    gain = f"{short(weight.gain, '+.4f')} over selection by score alone"
    if weight.chosen == 0:
        return f"Variance weight: none is measurably better than 0; the best, {weight.best:g}, has {gain}."
    if weight.chosen == weight.best:
        return f"Variance weight: {weight.best:g}, which has {gain}."
    return f"Variance weight: {weight.chosen:g}; the best, {weight.best:g}, has {gain}, and is not measurably better."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def row(each: Finding, metric: str) -> dict[str, Any]:
    """The numbers of one contestant."""

    def parts(value: Measured | None) -> dict[str, float] | None:
        return None if value is None else value._asdict()

    detection = {name: float(each.late("detection", name).mean()) for name in ("score", "steady", "score_hard", "steady_hard")}
    kinds = each.late("p_pos").mean(axis=0), each.late("wavering").mean(axis=0)
    return {
        "sampler": each.contestant.name,
        "settings": dict(each.contestant.values),
        "hidden_ratio": parts(each.hidden),
        "times_chance": parts(each.to_chance),
        "label_error_ratio": parts(each.errors),
        metric: parts(each.metric),
        "over_uniform": parts(each.to_uniform),
        "behind_best": parts(each.behind),
        "worse_than_best": each.worse,
        "p_pos": {"hidden": kinds[0][0], "uniform": kinds[0][1]},
        "std_over_mean": {"hidden": kinds[1][0], "uniform": kinds[1][1]},
        "auc": detection,
        "best_epochs": [run["best_epoch"] for run in each.runs],
    }


def numbers(found: Findings) -> dict[str, Any]:
    """All of it, for programs."""
    chosen = found.recommendation
    return {
        "facts": found.facts,
        "answer": answer(found),
        "recommended": None  # one alone was compared with nothing
        if found.alone
        else {
            "sampler": chosen.chosen.contestant.name,
            "settings": dict(chosen.chosen.contestant.values),
            "as_good": list(chosen.as_good),
            "variance_weight": None if chosen.weight is None else chosen.weight._asdict(),
        },
        "samplers": [row(each, found.facts["metric"]) for each in found.each],
        "notes": list(found.notes),
    }


def glossary(found: Findings) -> list[str]:
    """What somebody may not know, in the order in which it is met."""
    samplers: dict[str, str] = {}
    for each in found.each:  # of those that differ in the weight alone, the first
        samplers.setdefault(each.contestant.kind, _does(each.contestant))
    return [
        "Hidden positive: something that a user took, and that was kept from training as if they had not. To the sampler it is "
        "like any other untouched item, but it is known to be liked.",
        f"{explained(found.facts['metric'])}.",
        "95% interval: the range in 0.12 (0.10 to 0.14). With other users the number would differ; the range says how much.",
        "Epoch: one pass of training over all positives, each beside some negatives that are drawn anew.",
        "Score: the number by which a model ranks items for a user.",
        "Hard negative: an untouched item that the model scores high.",
        *(f"Sampler {name}: {does}." for name, does in samplers.items()),
    ]


def equal_numbers(found: Findings) -> str:
    """How many negatives there are to a positive."""
    each = [one.contestant for one in found.each]
    said = [f"Each positive had {number} negatives." for number in {one.values.get("negatives") for one in each} - {None}]
    if shared := [one.name for one in each if "negatives" not in one.values]:
        said.append(f"Those of {_listed(shared)} are shared within a batch, and are of another number.")
    return " ".join(said)


def _does(contestant: Contestant) -> str:
    if (weight := contestant.variance_weight) is not None:
        by = "high score and, by the weight in the name, by how much the score wavers" if weight else "high score alone"
        return f"a memory of hard negatives for each user, refreshed by score; half of it is taken, by {by}"
    sampler = SAMPLERS[contestant.values["sampler"]]
    own = " ".join((sampler.__doc__ or "").split("\n\n")[0].split()).removesuffix(".")
    return DOES.get(sampler.name, own)


def described(contestant: Contestant) -> list[str]:
    values = {name: value for name, value in contestant.values.items() if name != "sampler"}
    return [contestant.name, _does(contestant), ", ".join(f"{name} = {value}" for name, value in values.items())]
