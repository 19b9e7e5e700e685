"""A trained model in use: recommendations and similar items in the caller's own ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from srns import artifacts, starts
from srns.config import DATA_FIELDS, RunConfig, make_config
from srns.engines import Factory
from srns.errors import ArtifactError, ConfigError, UnknownIdError
from srns.evaluation import PAIR_BYTES
from srns.interactions import Int64, Interactions
from srns.kernels.ranking import mask_seen, top_k
from srns.ranks import ALONE, Ranks
from srns.readers import read
from srns.scorers import GMF, SCORERS, Model, score_rows
from srns.splits import Split
from srns.trainer import Callback, Trainer, Training

Label = int | str
BLOCK_BYTES = 64 << 20  # scores held at a time


class Recommender:
    """Learns from interactions and recommends items; hyper-parameters are the fields of `srns.RunConfig`.

    `scorer` may also be a function that makes a torch module of your own from the training data (docs/torch.md).

    >>> from srns.simulation import simulate
    >>> data = simulate(n_users=60, n_items=50, n_interactions=900).interactions
    >>> model = Recommender(dim=8, epochs=3, engine="plain").fit(data)
    >>> ids, scores = model.recommend(data.user_ids.label(0), k=3)
    >>> len(ids), bool(scores[0] >= scores[1])
    (3, True)
    """

    def __init__(self, config: RunConfig | None = None, **fields: Any) -> None:
        self.module = fields.pop("scorer") if callable(fields.get("scorer")) else None
        values = {**(config.model_dump(exclude_unset=True) if config is not None else {}), **fields}
        self.config = make_config(values)

    def get_params(self) -> dict[str, Any]:
        """All hyper-parameters by name."""
        return self.config.model_dump()

    def fit(
        self,
        train: Any,
        valid: Interactions | None = None,
        callbacks: Sequence[Callback] = (),
        *,
        init: Recommender | Model | None = None,
    ) -> Recommender:
        """Train on Interactions, a Split, or anything `srns.read` takes (a frame, a sparse matrix, a path). Returns self.

        All of `train` is learnt from: to measure the model, give a Split (`srns.make_split`), whose other parts stay out. With
        `valid`, or with a Split that has it, the best validation epoch is kept, and training stops early if `patience` is set;
        without, the last epoch is the result. Training starts from the parameters of `init`, where it is given, in place of
        random ones; the field `init` names the folder of a run to start from.
        """
        if isinstance(train, Split) and valid is not None:
            raise ConfigError("fit() got a Split and valid; the Split brings its own valid part")
        ignored = [name for name in DATA_FIELDS if getattr(self.config, name) != RunConfig.model_fields[name].default]
        if ignored:
            raise ConfigError(
                f"{ignored[0]} is for `srns train`; here, read and split the data first: srns.read, srns.make_split"
            )
        if not isinstance(train, Interactions | Split):
            train = read(train)
        split = train if isinstance(train, Split) else Split("fit", train, valid, None)
        if isinstance(init, Recommender):
            starts.require_same(init.split_.train, split.train, "the model that init=... names")
        start = init._model() if isinstance(init, Recommender) else init
        training = Trainer(self.config, split, callbacks=callbacks, scorer=self.module, init=start).run()
        return self._use(training.model, split, training)

    def _use(
        self, model: Model, split: Split, training: Training | None = None, share: tuple[int, int] = (0, 1)
    ) -> Recommender:
        self.model_ = model
        self.split_ = split
        self.training_ = training
        self._share = share  # of `recommend_frames` for all users
        parts = [part for part in (split.valid, split.test) if part is not None]
        self.seen_ = split.train.union(*parts) if parts else split.train  # everything known is nothing to recommend
        self.trained_users_ = split.train.user_counts > 0
        return self

    def _model(self) -> Model:
        if not hasattr(self, "model_"):
            raise ConfigError("this Recommender has not been trained: call fit() or load()")
        return self.model_

    @property
    def user_factors(self) -> NDArray[np.float32]:
        """(n_users, F) with beta folded in: `user_factors @ item_factors.T` are the scores."""
        model = self._model()
        if not isinstance(model, GMF):
            raise ConfigError(f"the scores of {type(model).__name__} are no products of factors of users and items")
        return model.user_factors

    @property
    def item_factors(self) -> NDArray[np.float32]:
        """(n_items, F)."""
        return self._model().item_factors

    def recommend(
        self,
        users: Label | Sequence[Label] | NDArray[Any] | pl.Series,
        k: int = 10,
        *,
        exclude_seen: bool = True,
        exclude: Iterable[Label] | None = None,
        candidates: Iterable[Label] | None = None,
        unknown: Literal["raise", "popular"] = "raise",
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The k best items for one user (k,) or for n users (n, k): ids and scores, best first, ties by id.

        Items the user is known to have touched are left out unless `exclude_seen=False`; `exclude` leaves out more and
        `candidates` all others. A user without training interactions raises UnknownIdError, or gets the most popular items with
        `unknown="popular"` (scores are then shares of all interactions). Where fewer than k items remain, one user gets a
        shorter list, and many get rows padded with score -inf (id -1, or an empty string).
        """
        self._model()
        one, labels = _listed(users)
        indices = self._known_users(labels, unknown)
        ids, scores = self._top(indices, k, exclude_seen, self._allowed(exclude, candidates))
        labelled = self._item_labels(ids)
        if one:
            found = ids[0] >= 0
            return labelled[0][found], scores[0][found]
        return labelled, scores

    def recommend_frames(
        self, users: Any = None, k: int = 10, *, exclude_seen: bool = True, unknown: Literal["raise", "popular"] = "raise"
    ) -> Iterator[pl.DataFrame]:
        """Recommendations for `users`, or for all trained users, in blocks: frames of user_id, item_id, score, rank."""
        self._model()
        user_ids, item_ids = self.split_.train.user_ids, self.split_.train.item_ids
        if users is None:
            indices = self._all_users()
        else:
            _, given = _listed(users)
            indices = self._known_users(given, unknown)
        labels = user_ids.take(np.maximum(indices, 0))
        if (indices < 0).any():  # a user who is not in the data appears as asked for, in the type of the others if that can be
            asked = pl.Series("user", [str(user) for user in given])
            cast = asked.cast(user_ids.labels.dtype, strict=False)
            labels = asked if cast.null_count() else cast
        block = self._block(len(item_ids))
        for start in range(0, max(1, len(indices)), block):  # without users, a frame without rows
            ids, scores = self._top(indices[start : start + block], k, exclude_seen, None)
            row, place = np.nonzero(ids >= 0)
            yield pl.DataFrame(
                {
                    "user_id": labels.gather(start + row),
                    "item_id": item_ids.take(ids[row, place]),
                    "score": scores[row, place],
                    "rank": (place + 1).astype(np.int32),
                }
            )

    @property
    def n_recommended(self) -> int:
        """How many users `recommend_frames` is for when none are named."""
        return len(self._all_users())

    def _all_users(self) -> Int64:
        rank, size = self._share
        return np.array_split(np.flatnonzero(self.trained_users_), size)[rank]

    def similar_items(
        self, items: Label | Sequence[Label] | NDArray[Any] | pl.Series, k: int = 10
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The k items nearest by cosine of their embeddings, for one item (k,) or n items (n, k); never the item itself."""
        vectors = self._model().item_factors
        one, labels = _listed(items)
        indices = self.split_.train.item_ids.indices(labels)
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        ids, values = _best_lists(len(indices), min(_checked(k), len(unit) - 1))
        block = self._block(len(unit))
        for start in range(0, len(indices), block):
            rows = indices[start : start + block]
            scores = np.ascontiguousarray(unit[rows] @ unit.T)
            scores[np.arange(len(rows)), rows] = -np.inf
            if ids.shape[1]:
                ids[start : start + block], values[start : start + block] = top_k(scores, ids.shape[1])
        labelled = self._item_labels(ids)
        return (labelled[0], values[0]) if one else (labelled, values)

    def _known_users(self, labels: Any, unknown: str) -> Int64:
        """Dense ids; -1 for users who are not in the data."""
        if unknown not in ("raise", "popular"):
            raise ConfigError(f"unknown = {unknown!r}: expected 'raise' or 'popular'")
        user_ids = self.split_.train.user_ids
        indices = user_ids.indices(labels, missing="raise" if unknown == "raise" else "-1")
        if unknown == "raise" and (cold := ~self.trained_users_[indices]).any():
            label = user_ids.label(int(indices[cold][0]))
            raise UnknownIdError(
                f"user {label!r} has no training interactions; unknown='popular' recommends the most popular items"
            )
        return indices

    def _allowed(self, exclude: Iterable[Label] | None, candidates: Iterable[Label] | None) -> NDArray[np.bool_] | None:
        if exclude is None and candidates is None:
            return None
        item_ids = self.split_.train.item_ids
        allowed = np.full(len(item_ids), candidates is None)
        if candidates is not None:
            allowed[item_ids.indices(list(candidates))] = True
        if exclude is not None:
            allowed[item_ids.indices(list(exclude))] = False
        return allowed

    def _top(
        self, users: Int64, k: int, exclude_seen: bool, allowed: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Dense items (n, k) and scores of dense users (n,); untrained ones, -1 among them, are served by popularity."""
        model = self._model()
        n_items = self.split_.train.n_items
        ids, values = _best_lists(len(users), min(_checked(k), n_items))
        popularity = (self.split_.train.item_counts / max(1, len(self.split_.train))).astype(np.float32)
        block = self._block(n_items)
        for start in range(0, len(users), block):
            rows = users[start : start + block]
            scores = np.array(score_rows(model, np.maximum(rows, 0), n_items), np.float32, order="C")
            scores[(rows < 0) | ~self.trained_users_[rows]] = popularity
            if exclude_seen:
                known = np.flatnonzero(rows >= 0)
                if len(known) == len(rows):
                    mask_seen(scores, rows, self.seen_.indptr, self.seen_.items)
                elif len(known):
                    part = scores[known]
                    mask_seen(part, rows[known], self.seen_.indptr, self.seen_.items)
                    scores[known] = part
            if allowed is not None:
                scores[:, ~allowed] = -np.inf
            ids[start : start + block], values[start : start + block] = top_k(scores, ids.shape[1])
        return ids, values

    def _block(self, n_items: int) -> int:
        """Users to score at a time: a scorer of pairs gathers what it knows of each."""
        return max(1, BLOCK_BYTES // ((4 if hasattr(self._model(), "score_all") else PAIR_BYTES) * n_items))

    def _item_labels(self, ids: NDArray[np.int32]) -> NDArray[Any]:
        """Dense ids (n, k) to labels; -1 becomes -1 or ""."""
        item_ids = self.split_.train.item_ids
        labels = item_ids.take(np.maximum(ids.ravel(), 0)).to_numpy()
        text = labels.dtype.kind not in "iu"
        if text:
            labels = labels.astype(object)
        labels = np.where(ids.ravel() >= 0, labels, "" if text else -1)
        return labels.reshape(ids.shape)

    def save(self, path: str | Path) -> None:
        """Write the model, its ids and what users have touched to a folder; `load` reads it back."""
        run = {"status": "finished", "config": self.config.model_dump(mode="json")}
        save_model(Path(path), self._model(), self.split_, run | ({"module": True} if self.module is not None else {}))

    @classmethod
    def load(cls, path: str | Path, *, scorer: Factory | None = None, share: tuple[int, int] = (0, 1)) -> Recommender:
        """Read what `save` or `srns train` wrote. Executes nothing from the files, and names a damaged one.

        `scorer` makes the module of a model of your own. With `share` (r, n), `recommend_frames` for all users is for the r-th
        of n parts of them, and of a run of several ranks only these are read.
        """
        folder = Path(path)
        run = artifacts.read_run(folder)
        if run.get("status") != "finished":
            raise ArtifactError(f"{folder} holds an unfinished run; finish it with `srns train ... --out {folder} --resume`")
        if run.get("module", False) != (scorer is not None):
            needed = "a module of your own, and needs" if scorer is None else "no module of your own, and takes no"
            raise ArtifactError(f"{folder} holds {needed} scorer=...: what makes the module from the training data")
        config = saved_config(folder, run)
        shards, left = _share(artifacts.shards_of(run), *share)
        split = artifacts.read_data(folder, run, shards)
        tensors = artifacts.read_model(folder, run, shards)
        if scorer is not None:
            return cls(config, scorer=scorer)._use(_own_model(scorer, split, tensors), split, share=left)
        kind, where = SCORERS[config.scorer], folder / artifacts.MODEL
        shapes = kind.shapes(split.train.n_users, split.train.n_items, config.dim, config.hidden_layers)
        for name, shape in shapes.items():
            dtype = np.dtype(getattr(kind, "dtypes", {}).get(name, np.float32))
            if name not in tensors or tensors[name].shape != shape or tensors[name].dtype != dtype:
                raise ArtifactError(f"{where} does not fit its run: tensor {name!r} is not {dtype} of shape {shape}")
        try:
            model = kind.from_tensors(tensors)
        except (KeyError, ValueError) as error:
            raise ArtifactError(f"{where} does not fit its run: {error}") from None
        return cls(config)._use(model, split, share=left)


def _share(shards: list[str], rank: int, size: int) -> tuple[list[str], tuple[int, int]]:
    """The shards that the r-th of several readers takes, and what share of the users in them is its own: where there are fewer
    shards than readers, each reads all and takes a share."""
    if size > len(shards):
        return shards, (rank, size)
    return [shards[each] for each in np.array_split(np.arange(len(shards)), size)[rank]], (0, 1)


def _own_model(scorer: Factory, split: Split, tensors: dict[str, NDArray[Any]]) -> Model:
    from srns.scorers.modules import ModuleModel

    try:
        return ModuleModel(scorer(split.train)).from_tensors(tensors)
    except RuntimeError as error:
        raise ArtifactError(f"the saved parameters do not fit the module that scorer=... made: {error}") from None


def saved_config(folder: Path, run: dict[str, Any]) -> RunConfig:
    """The configuration in run.json."""
    try:
        return make_config({name: value for name, value in run["config"].items() if value is not None})
    except ConfigError as error:
        raise ArtifactError(f"{folder / artifacts.RUN}: {error}") from None


def _listed(labels: Any) -> tuple[bool, Any]:
    """Whether `labels` is one id, and a list, array or Series of the ids in any case."""
    if isinstance(labels, int | str | np.integer):
        return True, [labels]
    return False, labels if isinstance(labels, np.ndarray | pl.Series) else list(labels)


def _checked(k: int) -> int:
    if k < 1:
        raise ConfigError(f"k must be at least 1, found {k}")
    return k


def _best_lists(n: int, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    return np.empty((n, k), np.int32), np.empty((n, k), np.float32)


def save_model(folder: Path, model: Model, split: Split, run: dict[str, Any], ranks: Ranks = ALONE) -> None:
    """Write a whole run folder, or leave it as it was; of several ranks each writes its users, and the first run.json."""
    parts = {
        name: part for name, part in (("train", split.train), ("valid", split.valid), ("test", split.test)) if part is not None
    }
    shard = artifacts.shard_name(ranks.rank, ranks.size)
    names = (artifacts.IDS, artifacts.INTERACTIONS, artifacts.MODEL)
    with artifacts.staging(folder / shard, names if ranks.size > 1 else (*names, artifacts.RUN)) as stage:
        files = artifacts.write_data(stage, parts, split.negatives)
        files[artifacts.MODEL] = artifacts.write_tensors(stage / artifacts.MODEL, model.tensors())
        if ranks.size == 1:
            artifacts.write_run(stage, {"data": {"name": split.name}, **run, "files": files})
    if ranks.size == 1:
        return
    every = {of + name: digest for of, theirs in ranks.gather((shard, files)) for name, digest in theirs.items()}
    if ranks.rank == 0:
        artifacts.write_run(folder, {**run, "files": every, "shards": ranks.size})
        artifacts.remove_shards(folder, ranks.size)
    ranks.gather(None)  # nobody goes on before the run is there


def write_frames(frames: Iterable[pl.DataFrame], path: Path) -> int:
    """Write frames one after another to .parquet, .csv or .jsonl, whole or not at all; returns the number of rows."""
    kind = path.suffix.lower()
    if kind not in (".parquet", ".csv", ".jsonl"):
        raise ConfigError(f"cannot write {path}: expected a name that ends in .parquet, .csv or .jsonl")
    rows = 0
    with artifacts.replacing(path) as temporary, temporary.open("wb") as file:
        if kind == ".parquet":
            frame = pl.concat(list(frames))
            try:
                frame.write_parquet(file)
            except pl.exceptions.PolarsError as error:  # what polars makes of a full disk
                raise OSError(str(error)) from None
            return len(frame)
        for number, frame in enumerate(frames):
            if kind == ".csv":
                frame.write_csv(file, include_header=number == 0)
            else:
                frame.write_ndjson(file)
            rows += len(frame)
    return rows
