"""A run as data: the one place where fields, defaults and their meaning are written.

The command line, TOML and JSON files and the Python API use these names. The chosen sampler's fields are fields of the run too.
"""

from __future__ import annotations

import difflib
import math
import re
from contextlib import suppress
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from srns.errors import explain
from srns.losses import LOSSES, blended
from srns.samplers import SAMPLERS, Negatives, Sampler
from srns.scorers import CLOSED_FORM, SCORERS, WITHOUT_NEGATIVES
from srns.splits import SPLITS


def _panel(name: str) -> Any:
    """The heading under which `srns train --help` lists a field."""
    return {"panel": name}


MODEL, LEARNING, DATA, MEASURING, RUNNING = map(_panel, ("Model", "Learning", "Data", "Measuring", "Running"))
L2_SCALE = 0.7  # of the rule in `RunConfig.l2_for`
# Of the same for scorers ease and als. On validation data (ndcg@10, full) EASE is best at 100 to 200 on ml-1m-paper, with 93
# positives per user, and at 50 on beauty, with 7; ALS with confidence 10 at 60 and at 1 to 10. Confidence 3 to 10 is best on
# the former (.0513 beside .0460 at 30), 40 on the latter (.0432 beside .0405 at 10).
EASE_SCALE, ALS_SCALE = 20.0, 5.0
# Of the rule in `RunConfig.pace_of_update`, chosen on validation data of ml-100k and beauty (benchmarks/updating.py).
UPDATE_EPOCHS, UPDATE_FEW, UPDATE_MORE = 0.15, 16.0, 2.0
UPDATE_POSITIVES, UPDATE_MOST = 28.0, 4.0
KS = (1, 3, 5, 10, 20)  # lengths of lists that are measured
METRIC = r"^(recall|ndcg|hit|mrr|map|precision)@[1-9][0-9]*$"


# In a string of SQL, such as dblink's: a setting of that name, or an address with one.
TEXT, PASSWORD = re.compile("'[^']*'"), re.compile(r"\bpassword\s*=|://[^/@\s]*:[^/@\s]*@", re.IGNORECASE)


class RunConfig(BaseModel):
    """Everything that decides what a training run does.

    >>> RunConfig(dim=64).learning_rate
    0.004
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    scorer: str = Field("gmf", json_schema_extra=MODEL, description="model: " + ", ".join(SCORERS))
    dim: int = Field(128, ge=1, le=4096, json_schema_extra=MODEL, description="numbers per embedding (F)")
    learn_beta: bool = Field(
        False, json_schema_extra=MODEL, description="learn the weights beta of the factors too, as the paper; else they stay 1"
    )
    init_std: float = Field(
        0.1, gt=0, json_schema_extra=MODEL, description="standard deviation of the embeddings at the start of training"
    )
    hidden_layers: int = Field(
        1, ge=0, le=3, json_schema_extra=MODEL, description="with scorer mlp: layers between embeddings and score (H)"
    )
    propagation_layers: int = Field(
        3, ge=1, le=10, json_schema_extra=MODEL, description="with scorer lightgcn: steps along the graph of interactions"
    )
    confidence: float = Field(
        10.0,
        gt=0,
        json_schema_extra=MODEL,
        description="with scorer als: weight of an interaction beside 1 of the rest (alpha)",
    )
    sampler: str = Field("srns", json_schema_extra=LEARNING, description="how negatives are chosen: " + ", ".join(SAMPLERS))
    loss: str = Field("softmax", json_schema_extra=LEARNING, description="loss: " + ", ".join(LOSSES))
    margin: float = Field(
        1.0, gt=0, json_schema_extra=LEARNING, description="with loss hinge: how far a positive should be ahead"
    )
    log_q: bool = Field(
        False,
        json_schema_extra=LEARNING,
        description="with loss softmax: weigh negatives by how likely they were drawn, where the sampler knows it",
    )
    learning_rate: float = Field(0.004, gt=0, json_schema_extra=LEARNING, description="step size of Adam (lr)")
    schedule: Literal["constant", "cosine"] = Field(
        "cosine", json_schema_extra=LEARNING, description="the step size stays, or falls to 0 over the epochs along a cosine"
    )
    perturbation: float = Field(
        0.0,
        ge=0,
        json_schema_extra=LEARNING,
        description="learn also from embeddings moved so far in the direction that raises the loss (epsilon of advir); 0: off",
    )
    l2: float | Literal["auto"] = Field(
        "auto",
        json_schema_extra=LEARNING,
        description=f"weight of the squared embeddings of each triple (reg); auto: {L2_SCALE} / sqrt(m), with scorer ease "
        f"{EASE_SCALE:g} * sqrt(m), als {ALS_SCALE:g} * sqrt(m), of m positives per user",
    )
    batch_size: int = Field(
        0,
        ge=0,
        json_schema_extra=LEARNING,
        description="positives per step (B), with sampler enmf users; 0: 1024, or fewer for 64 steps per epoch",
    )
    epochs: int = Field(
        20,
        ge=0,
        json_schema_extra=LEARNING,
        description="passes over the training data at most (T); 0 keeps the model that training starts from",
    )
    patience: int = Field(
        0,
        ge=0,
        json_schema_extra=LEARNING,
        description="stop after so many epochs in a row without a better validation; 0: never",
    )
    moving_average: float = Field(
        0.0,
        ge=0,
        lt=1,
        json_schema_extra=LEARNING,
        description="weight of the past in the average of epoch-end parameters; 0: off",
    )
    seed: int = Field(0, ge=0, lt=2**63, json_schema_extra=LEARNING, description="all randomness follows from it")
    init: str | None = Field(
        None,
        json_schema_extra=LEARNING,
        description="folder of a finished run on the same data, whose model training starts from",
    )
    noise: float | None = Field(
        None,
        ge=0,
        le=1,
        json_schema_extra=LEARNING,
        description="share sigma of hidden positives to feed to the memories of srns, for experiments on data with such",
    )
    split: str = Field(
        "auto",
        json_schema_extra=DATA,
        description="how data are divided, those with a fixed split by auto as they are: " + ", ".join(["auto", *SPLITS]),
    )
    split_seed: int = Field(0, ge=0, lt=2**63, json_schema_extra=DATA, description="randomness of the split, apart from `seed`")
    valid_share: float = Field(
        0.1, ge=0, lt=1, json_schema_extra=DATA, description="share of train held out where fixed splits bring no valid part"
    )
    table: str | None = Field(
        None, json_schema_extra=DATA, description="with a database: the table to read, as NAME or SCHEMA.NAME"
    )
    query: str | None = Field(None, json_schema_extra=DATA, description="with a database: the SQL whose rows are read")
    user_column: str | None = Field(
        None, json_schema_extra=DATA, description="name of the user column, where it is not recognised"
    )
    item_column: str | None = Field(None, json_schema_extra=DATA, description="name of the item column")
    weight_column: str | None = Field(
        None, json_schema_extra=DATA, description="name of the weight column (rating, count); none: ignore it"
    )
    time_column: str | None = Field(None, json_schema_extra=DATA, description="name of the time column; none: ignore it")
    drop_bad_rows: bool = Field(
        False, json_schema_extra=DATA, description="leave out rows with a missing or unreadable value, and say how many"
    )
    min_weight: float | None = Field(
        None, json_schema_extra=DATA, description="keep interactions of at least this weight (rating >= 4)"
    )
    min_user: int = Field(0, ge=0, json_schema_extra=DATA, description="keep users with at least so many interactions")
    min_item: int = Field(0, ge=0, json_schema_extra=DATA, description="keep items with at least so many interactions")
    protocol: Literal["auto", "full", "paper"] = Field(
        "auto",
        json_schema_extra=MEASURING,
        description="rank all items (full), or 1 + 100 (paper); auto: paper where the data bring its negatives, else full",
    )
    ks: tuple[int, ...] = Field(KS, json_schema_extra=MEASURING, description="list lengths to report")
    metric: str = Field(
        "ndcg@10", pattern=METRIC, json_schema_extra=MEASURING, description="validation metric that chooses the epoch"
    )
    validate_every: int = Field(1, ge=1, json_schema_extra=MEASURING, description="epochs between validations")
    engine: Literal["auto", "fused", "plain", "torch"] = Field(
        "auto",
        json_schema_extra=RUNNING,
        description="fused (compiled, gmf), plain (NumPy, gmf) or torch (any scorer, device and number of ranks)",
    )
    device: str = Field(
        "auto",
        json_schema_extra=RUNNING,
        description="of the torch engine: cpu, cuda, cuda:1, ...; auto: a GPU if there is one",
    )
    compile: bool = Field(False, json_schema_extra=RUNNING, description="torch engine: torch.compile the scoring")
    amp: bool = Field(
        False, json_schema_extra=RUNNING, description="torch engine: score in bfloat16 (automatic mixed precision)"
    )
    threads: int = Field(
        0, ge=0, json_schema_extra=RUNNING, description="threads to use; 0: all cores. The result does not depend on it"
    )
    checkpoint_epochs: int = Field(
        0, ge=0, json_schema_extra=RUNNING, description="write a checkpoint every so many epochs; 0: by time alone"
    )
    checkpoint_minutes: float = Field(
        1.0, gt=0, json_schema_extra=RUNNING, description="write a checkpoint when the last is so many minutes old"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_fields_of_sampler(cls, values: Any) -> Any:
        """Complete the chosen sampler's fields, so that a saved run says all it was made with; a closed form is one epoch."""
        name = values.get("sampler", cls.model_fields["sampler"].default)
        sampler = SAMPLERS.get(name) if isinstance(name, str) else None
        if sampler is None:
            return values  # reported below
        given = {name: value for name, value in values.items() if name in sampler.model_fields}
        try:
            solved = {"epochs": 1, "moving_average": 0.0} if values.get("scorer") in CLOSED_FORM else {}
            return {**values, **sampler(**given).model_dump(), **solved}
        except ValidationError as error:
            raise ValueError("; ".join(explain(part) for part in error.errors())) from None

    @field_validator("ks", mode="before")
    @classmethod
    def _ks_from_text(cls, value: Any) -> Any:
        return [part for part in value.split(",") if part] if isinstance(value, str) else value

    @field_validator("ks")
    @classmethod
    def _ks_sorted(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError("expected list lengths of at least 1")
        return tuple(sorted(set(value)))

    @field_validator("l2", mode="before")
    @classmethod
    def _l2_auto_or_number(cls, value: Any) -> Any:
        with suppress(TypeError, ValueError):
            if value == "auto" or 0 <= float(value) < math.inf:
                return value if value == "auto" else float(value)
        raise ValueError("expected 'auto' or a number of at least 0")

    @model_validator(mode="after")
    def _names_known(self) -> RunConfig:
        for field, known in (("sampler", SAMPLERS), ("scorer", SCORERS), ("loss", LOSSES), ("split", ["auto", *SPLITS])):
            if getattr(self, field) not in known:
                raise ValueError(f"{field} {getattr(self, field)!r} is unknown; {meant(getattr(self, field), list(known))}")
        sampler = self.make_sampler()
        if self.log_q and (self.loss != "softmax" or not sampler.knows_log_q):
            able = ", ".join(name for name, each in SAMPLERS.items() if each.knows_log_q)
            raise ValueError(f"log_q corrects the loss softmax with a sampler that knows its probabilities ({able})")
        return self

    @model_validator(mode="after")  # not of the field alone: what is wrong with a field is shown with its value
    def _query_without_password(self) -> RunConfig:
        if any(PASSWORD.search(text) for text in TEXT.findall(self.query or "")):
            raise ValueError("query holds a password, and is kept with the run: let the database know it, or ~/.pgpass")
        return self

    def loss_of(self, positive: Any, negative: Any, drawn: Negatives) -> tuple[Any, Any, Any]:
        """Loss (B,) of scores (B,), (B, K) and its gradients, as the fields of this run say; see `srns.losses`."""
        options = {"margin": self.margin} if self.loss == "hinge" else {"log_q": drawn.log_q} if self.log_q else {}
        options |= {} if drawn.weight is None else {"weight": drawn.weight}
        loss = LOSSES[self.loss]
        if drawn.blend is not None:
            return blended(loss, positive, negative, drawn.blend, **options)
        return loss(positive, negative, **options)

    def batch_size_for(self, n: int) -> int:
        """Positives per step on n training interactions: a few hundred of them must not be a single step."""
        return min(self.batch_size or min(1024, max(1, n // 64)), max(1, n))

    def l2_for(self, n: int, n_users: int) -> float:
        """The weight of L2 on n training interactions of n_users users.

        Each occurrence of a row is pulled towards 0, so a row of an active user is pulled often; where users have few
        positives, each must pull harder. The rule is fitted to validation data of three data sets (docs/results.md).
        Ridges of whole matrices stand against sums over users, and grow with them: see EASE_SCALE and ALS_SCALE.
        """
        if not isinstance(self.l2, str):
            return self.l2
        root = math.sqrt(max(1.0, n / max(1, n_users)))
        return {"ease": EASE_SCALE * root, "als": ALS_SCALE * root}.get(self.scorer, L2_SCALE / root)

    def pace_of_update(self, n: int, n_users: int) -> dict[str, Any]:
        """Epochs and step size of `srns update` for a model that was trained as this says, on n interactions of n_users users.

        Adam moves a row about as far as the step size in each step that it takes part in. Where users have few positives,
        their rows take part in few steps of few epochs, and only longer and more of them bring them to where the new data want
        them.
        """
        sparsity = max(1, n_users) / max(1, n)
        rate = self.learning_rate * min(UPDATE_MOST, UPDATE_POSITIVES * sparsity)
        share = UPDATE_EPOCHS * min(UPDATE_MORE, max(1.0, UPDATE_FEW * sparsity))
        return {"epochs": max(1, round(share * self.epochs)), "learning_rate": rate}

    def learning_rate_at(self, epoch: int) -> float:
        """The step size in an epoch, counted from 0."""
        share = 1.0 if self.schedule == "constant" else 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))
        return self.learning_rate * share

    def fields(self, *panels: dict[str, str]) -> dict[str, FieldInfo]:
        """The fields of some panels, those of the sampler under LEARNING."""
        fields = {name: field for name, field in type(self).model_fields.items() if field.json_schema_extra in panels}
        return fields | (SAMPLERS[self.sampler].model_fields if LEARNING in panels else {})

    def changed(self, *panels: dict[str, str]) -> list[str]:
        """Those of them whose value is not the default."""
        return [name for name, field in self.fields(*panels).items() if getattr(self, name) != field.default]

    @property
    def draws_negatives(self) -> bool:
        return self.scorer not in WITHOUT_NEGATIVES and SAMPLERS[self.sampler].draws

    def make_sampler(self) -> Sampler:
        """The sampler with the hyper-parameters this run gives it."""
        cls = SAMPLERS[self.sampler]
        extra = self.model_extra or {}
        unknown = [name for name in extra if name not in cls.model_fields]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not a field of a run with {self._not_of(unknown[0])}")
        return cls(**extra)

    def _not_of(self, name: str) -> str:
        """The method that has no field of this name; whose it is, or what was meant."""
        owners, fields = sampler_fields().get(name, {}), list(SAMPLERS[self.sampler].model_fields)
        if self.scorer in WITHOUT_NEGATIVES:
            rest = f"it belongs to samplers: {', '.join(owners)}" if owners else meant(name, list(type(self).model_fields))
            return f"scorer {self.scorer!r}, which draws no negatives; {rest}"
        if owners:
            rest = f"it belongs to {', '.join(owners)}; this sampler has {', '.join(fields) or 'none'}"
        else:
            rest = meant(name, [*type(self).model_fields, *fields])
        return f"sampler {self.sampler!r}; {rest}"


def meant(name: str, known: list[str]) -> str:
    """The likeliest of the known names, or all of them."""
    alike = difflib.get_close_matches(str(name).lower().replace("-", "_"), known, n=1)
    return f"did you mean {alike[0]!r}?" if alike else f"expected one of: {', '.join(known)}"


DATA_FIELDS = [name for name, field in RunConfig.model_fields.items() if field.json_schema_extra == DATA]
ROLES = ("user", "item", "weight", "time")  # columns that are read
FILTERS = ("drop_bad_rows", "min_weight", "min_user", "min_item")
FILE_FIELDS = (*(f"{role}_column" for role in ROLES), *FILTERS)  # how files are read


def sampler_fields() -> dict[str, dict[str, FieldInfo]]:
    """The fields that samplers add to a run: by name, and by the samplers that have them."""
    found: dict[str, dict[str, FieldInfo]] = {}
    for sampler in SAMPLERS.values():
        for name, field in sampler.model_fields.items():
            found.setdefault(name, {})[sampler.name] = field
    return found
