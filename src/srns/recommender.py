"""A trained model in use: recommendations and similar items in the caller's own ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from srns import artifacts, starts, storage
from srns.best import Best, allowed_items, best_of, checked, nearest
from srns.config import DATA_FIELDS, RunConfig
from srns.engines import Factory
from srns.errors import ConfigError, UnknownIdError
from srns.evaluation import PAIR_BYTES
from srns.foldin import Newcomers
from srns.interactions import Int64, Interactions
from srns.presets import make_config
from srns.readers import read
from srns.scorers import GMF, Model
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
        self.updated_: dict[str, Any] = {}  # what it was updated from, see `srns.updates`
        self._folder: Path | None = None
        self._share = share  # of `recommend_frames` for all users
        parts = [part for part in (split.valid, split.test) if part is not None]
        self.seen_ = split.train.union(*parts) if parts else split.train  # everything known is nothing to recommend
        self.trained_users_ = split.train.user_counts > 0
        for name in ("newcomers_", "best_", "unit_factors_", "item_labels_"):  # of the model before
            self.__dict__.pop(name, None)
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
        allowed = self._allowed(exclude, candidates)
        ids, scores = self.best_.items(indices, k, self.block, exclude_seen=exclude_seen, allowed=allowed)
        labelled = self._item_labels(ids)
        if one:
            found = ids[0] >= 0
            return labelled[0][found], scores[0][found]
        return labelled, scores

    def recommend_frames(
        self,
        users: Any = None,
        k: int = 10,
        *,
        exclude_seen: bool = True,
        unknown: Literal["raise", "popular"] = "raise",
        skip: int = 0,
    ) -> Iterator[pl.DataFrame]:
        """Recommendations for `users`, or for all trained users, in blocks: frames of user_id, item_id, score, rank.

        The first `skip` users are left out. A frame is of `block` users, so that whole blocks can be done at another time.
        """
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
        block = self.block
        room = np.empty((min(block, len(indices)), len(item_ids)), np.float32) if isinstance(self._model(), GMF) else None
        for start in range(skip, max(1, len(indices)), block):  # without users, a frame without rows
            ids, scores = self.best_.items(indices[start : start + block], k, block, exclude_seen=exclude_seen, room=room)
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
    def block(self) -> int:
        """How many users to score at a time, which is also how many a frame of `recommend_frames` is for: a scorer of pairs
        gathers what it knows of each."""
        each = 4 if hasattr(self._model(), "score_all") else PAIR_BYTES
        return max(1, BLOCK_BYTES // (each * self.split_.train.n_items))

    @property
    def share(self) -> tuple[int, int]:
        """(r, n): all users of this are the r-th of n parts of those in its run."""
        return self._share

    @property
    def n_recommended(self) -> int:
        """How many users `recommend_frames` is for when none are named."""
        return len(self._all_users())

    def _all_users(self) -> Int64:
        rank, size = self._share
        return np.array_split(np.flatnonzero(self.trained_users_), size)[rank]

    def fold_in(self, items: Label | Sequence[Label] | NDArray[Any] | pl.Series) -> NDArray[np.float32]:
        """The vector (F,) of a user who was not there in training, from the items they touched: `item_factors @ vector` are
        their scores. Nothing is trained; see `srns.foldin`."""
        return self.newcomers_.vector(self._touched(items))

    def recommend_for(
        self,
        items: Label | Sequence[Label] | NDArray[Any] | pl.Series,
        k: int = 10,
        *,
        exclude_seen: bool = True,
        exclude: Iterable[Label] | None = None,
        candidates: Iterable[Label] | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The k best items for somebody who touched `items` and is otherwise unknown: ids (k,) and scores, best first.

        These items are left out unless `exclude_seen=False`; `exclude` leaves out more and `candidates` all others.
        """
        touched = self._touched(items)
        allowed = self._allowed(exclude, candidates)
        ids, scores = best_of(self.newcomers_.scores(touched), k, touched if exclude_seen else None, allowed)
        return self.item_labels_[ids], scores

    def explain(
        self, user: Label, item: Label | Sequence[Label] | NDArray[Any] | pl.Series, k: int = 10
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Why `item` for `user`: the k of the user's own items that add most to it, ids (k,) and what they add, most first; for
        m items (m, k), which takes hardly longer than for one.

        The shares of all of them add up to the item's score for somebody who is folded in with these items (`fold_in`). That is
        near the score that `recommend` gives, but not the same.
        """
        (index,) = self._known_users([user], "raise")
        return self.explain_for(self.split_.train.item_ids.take(self.split_.train.items_of(int(index))), item, k)

    def has_touched(self, user: Label, item: Label) -> bool:
        """Whether the user had the item already in training."""
        (index,) = self._known_users([user], "raise")
        train = self.split_.train
        return int(train.item_ids.indices([item])[0]) in train.items_of(int(index))

    def explain_for(
        self,
        items: Label | Sequence[Label] | NDArray[Any] | pl.Series,
        item: Label | Sequence[Label] | NDArray[Any] | pl.Series,
        k: int = 10,
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The same for somebody who touched `items`."""
        one, labels = _listed(item)
        wanted = self.split_.train.item_ids.indices(labels)
        ids, shares = self.newcomers_.reasons(self._touched(items), wanted, checked(k))
        return (self.item_labels_[ids[0]], shares[0]) if one else (self.item_labels_[ids], shares)

    @cached_property
    def newcomers_(self) -> Newcomers:
        """People by what they touched, in dense ids."""
        return Newcomers(self._model(), self.config, self.split_.train)

    def _touched(self, items: Any) -> Int64:
        """Dense ids, each once."""
        self._model()
        _, labels = _listed(items)
        touched = np.unique(self.split_.train.item_ids.indices(labels))
        if not len(touched):
            raise ConfigError("no items to go by: name at least one that the user touched")
        return touched

    def similar_items(
        self, items: Label | Sequence[Label] | NDArray[Any] | pl.Series, k: int = 10
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The k items nearest by cosine of their embeddings, for one item (k,) or n items (n, k); never the item itself."""
        unit = self.unit_factors_
        one, labels = _listed(items)
        ids, values = nearest(unit, self.split_.train.item_ids.indices(labels), k, self.block)
        labelled = self._item_labels(ids)
        return (labelled[0], values[0]) if one else (labelled, values)

    @cached_property
    def unit_factors_(self) -> NDArray[np.float32]:
        """(n_items, F), each of length 1."""
        vectors = self._model().item_factors
        unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return unit

    def _known_users(self, labels: Any, unknown: str) -> Int64:
        """Dense ids; -1 for users who are not in the data."""
        if unknown not in ("raise", "popular"):
            raise ConfigError(f"unknown = {unknown!r}: expected 'raise' or 'popular'")
        user_ids = self.split_.train.user_ids
        try:
            indices = user_ids.indices(labels, missing="raise" if unknown == "raise" else "-1")
        except UnknownIdError as error:
            raise UnknownIdError(f"{error}{self._left_out()}") from None
        if unknown == "raise" and (cold := ~self.trained_users_[indices]).any():
            label = user_ids.label(int(indices[cold][0]))
            raise UnknownIdError(
                f"user {label!r} has no training interactions; unknown='popular' recommends the most popular items"
            )
        return indices

    def _left_out(self) -> str:
        """Why a user who is in the file may be unknown here."""
        filters = [
            f"{name} = {value:g}" for name in ("min_user", "min_item", "min_weight") if (value := getattr(self.config, name))
        ]
        return f" (the model was trained with {', '.join(filters)}, which leaves out users with less)" if filters else ""

    @cached_property
    def best_(self) -> Best:
        """Lists in dense ids."""
        return Best(self._model(), self.seen_, self.trained_users_, self.split_.train.popularity)

    def _allowed(self, exclude: Iterable[Label] | None, candidates: Iterable[Label] | None) -> NDArray[np.bool_] | None:
        ids = self.split_.train.item_ids
        given = (None if labels is None else ids.indices(list(labels)) for labels in (exclude, candidates))
        return allowed_items(len(ids), *given)

    def _item_labels(self, ids: NDArray[np.int32]) -> NDArray[Any]:
        """Dense ids (n, k) to labels; -1 becomes -1 or ""."""
        every = self.item_labels_
        return np.where(ids >= 0, every[np.maximum(ids, 0)], -1 if every.dtype.kind in "iu" else "")

    @cached_property
    def item_labels_(self) -> NDArray[Any]:
        """The caller's ids of all items, (n_items,): integers or, as objects, strings."""
        labels = self.split_.train.item_ids.labels.to_numpy()
        return labels if labels.dtype.kind in "iu" else labels.astype(object)

    def save(self, path: str | Path) -> None:
        """Write the model, its ids and what users have touched to a folder; `load` reads it back."""
        model = self._model()
        run: dict[str, Any] = {"status": "finished", "config": self.config.model_dump(mode="json")}
        run |= ({"module": True} if self.module is not None else {}) | ({"updated": self.updated_} if self.updated_ else {})
        storage.save_model(Path(path), model, self.split_, run, memories=self.memories())

    @classmethod
    def load(cls, path: str | Path, *, scorer: Factory | None = None, share: tuple[int, int] = (0, 1)) -> Recommender:
        """Read what `save` or `srns train` wrote. Executes nothing from the files, and names a damaged one.

        `scorer` makes the module of a model of your own. With `share` (r, n), `recommend_frames` for all users is for the r-th
        of n parts of them, and of a run of several ranks only these are read.
        """
        config, model, split, left = storage.load_model(Path(path), scorer, share)
        loaded = cls(config, **({"scorer": scorer} if scorer is not None else {}))._use(model, split, share=left)
        loaded.updated_, loaded._folder = artifacts.read_run(Path(path)).get("updated", {}), Path(path)
        return loaded

    def memories(self) -> dict[str, NDArray[Any]]:
        """What the sampler remembered at the end of training, for `srns.update`; empty where nothing is known of it."""
        if self.training_ is not None:
            return self.training_.memories
        return {} if self._folder is None or self._share != (0, 1) else storage.load_memories(self._folder)


def _listed(labels: Any) -> tuple[bool, Any]:
    """Whether `labels` is one id, and a list, array or Series of the ids in any case."""
    if isinstance(labels, int | str | np.integer):
        return True, [labels]
    return False, labels if isinstance(labels, np.ndarray | pl.Series) else list(labels)
