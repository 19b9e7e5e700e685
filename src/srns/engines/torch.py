"""The engine for everything else: any scorer, any device, any number of ranks. Autograd, dense Adam, array-API samplers.

From the same seed it draws the batches and negatives of the other engines and follows their loss curve. On several ranks each
takes the positives of its own users out of the common batch, so that all together make the step that one alone would make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from srns import rng
from srns.config import RunConfig
from srns.distributed import GradientSum, copy_from_first, differentiable_sum
from srns.engines import Factory
from srns.engines.torch_adam import TorchAdam
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.kernels.rows import RowTwins
from srns.ranks import ALONE, Ranks
from srns.samplers import Negatives, Truth
from srns.samplers.srns import SRNSState
from srns.scorers import GMF, MLP, Model
from srns.scorers.lightgcn import Graph
from srns.scorers.modules import AnyModule, GMFModule, LayeredFactors, LightGCNModule, MLPModule, Sum, Trainable, View

WINDOW, POSITIVES = 64, 2**20  # batches whose positives are sent to the device at once, and positives of these at most
TINY = 1e-30  # a gradient shorter than this has no direction


class Batch(NamedTuple):
    """The positives of this rank in one step of all."""

    users: Tensor  # (B,)
    positives: Tensor  # (B,)
    most: int  # positives that any rank has in it


class Scored:
    """A view within a step as a sampler sees it: scored as the engine does, with what else the view offers."""

    def __init__(self, view: View, score: Callable[[View, Tensor, Tensor], Tensor]) -> None:
        self._view, self._score = view, score

    def __call__(self, users: Tensor, items: Tensor) -> Tensor:
        return self._score(self._view, users, items)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


class TorchEngine:
    """Trains the scorer of `config`, or the module that `factory` makes; `run_epoch(0)`, `run_epoch(1)`, ... in turn."""

    name = "torch"

    def __init__(
        self,
        config: RunConfig,
        train: Interactions,
        truth: Truth | None = None,
        *,
        ranks: Ranks = ALONE,
        factory: Factory | None = None,
    ) -> None:
        self.config, self.train, self.ranks = config, train, ranks
        self.device = device_of(config, ranks.size > 1)
        truth = truth or Truth()
        sampler = config.make_sampler()
        if ranks.size > 1 and getattr(sampler, "history", "snapshots") != "snapshots":
            raise ConfigError("history 'candidates' is for one rank: its logs are not divided by users")
        if ranks.size > 1 and sampler.one_rank:
            raise ConfigError(f"sampler {config.sampler!r} is for one rank: what it draws depends on all positives of a batch")
        self._learns = sampler.learns
        self._perturbation = config.perturbation
        extra: dict[str, Any] = {} if truth.noise is None else {"noise": truth.noise}
        # A module of the user's own: rows of other ranks' users start elsewhere, and all else is the first's.
        with self.device, _seeded(config.seed + train.whole.first_user, self.device):
            self.sampler = sampler.start(train, seed=config.seed, xp=torch, **extra)
            self.module = make_module(config, train, differentiable_sum(ranks), factory).to(self.device)
            self._users, self._items = (torch.tensor(ids, dtype=torch.int64) for ids in (train.users, train.items))
            known = truth.positives if truth.positives is not None and truth.positives.whole.n else None
            self._known = None if known is None else torch.tensor(known.users.astype(np.int64) * known.n_items + known.items)
        if config.perturbation and not isinstance(self.module, GMFModule | MLPModule):
            raise ConfigError("perturbation moves the embeddings of users and items: scorers gmf and mlp have such to move")
        self.sampler.observing = True
        if isinstance(self.sampler, SRNSState) and self.device.type == "cpu":
            self.sampler.twins = RowTwins(torch)
        self._check_rows(factory)
        self._named = {name: each for name, each in self.module.named_parameters() if each.requires_grad}
        if not self._named:
            raise ConfigError("your module has no parameters to train")
        self._adam = TorchAdam(self._named)
        local, tables = set(self.module.user_rows), set(self.module.item_rows)
        copied = {name: each for name, each in self._named.items() if name not in local}
        self._copies = [each.data for each in copied.values()]
        self._copies += [each for name, each in self.module.named_buffers() if name not in local]
        self._tables = [each for name, each in copied.items() if name in tables and each.ndim == 2]  # a bias travels whole
        self._dense = [each for name, each in copied.items() if name not in tables or each.ndim != 2]
        self._sum = GradientSum(ranks)
        self._firsts = np.array(ranks.gather(train.whole.first))
        self._batch_size = config.batch_size_for(train.whole.n)
        self.uses_l2 = self.module.has_squares
        self._l2 = config.l2_for(train.whole.n, train.whole.n_active) if self.uses_l2 else 0.0
        # How many items a step looks up: decides whether scorers prepare all items or just those.
        sizes = ("memory_size", "expansion_size", "candidates", "reference")
        shared = 0 if sampler.n_negatives else self._batch_size  # negatives that are the batch itself
        self._lookups = self._batch_size * (1 + sampler.n_negatives + shared + sum(getattr(sampler, n, 0) for n in sizes))
        self._score = torch.compile(_scores, dynamic=True) if config.compile else _scores
        # Counted before the first validation: Numba's threads, which start there, set the number of torch's to that of cores,
        # whatever OMP_NUM_THREADS says; ranks on one machine then had each other's cores for most of their runs.
        self._threads = config.threads or torch.get_num_threads()
        self._learning_rate = config.learning_rate
        self._label_errors = 0.0
        self._drawn = torch.zeros(0 if self._known is None else len(self._known), dtype=torch.float64, device=self.device)

    def needs_compiling(self) -> bool:
        """Whether the first epoch will spend seconds on compilation, as it does once per installation."""
        return self.sampler.needs_compiling()

    @property
    def model(self) -> Model:
        """A copy of the current parameters, as they are used."""
        return self.module.model()

    def run_epoch(self, epoch: int) -> float:
        """One pass over the shuffled positives of all ranks; returns the mean loss per positive."""
        key = rng.stream_key(self.config.seed, f"torch of rank {self.ranks.rank}", epoch)
        with self.device, _threads(self._threads), _seeded(key.b << 32 | key.a, self.device):
            copy_from_first(self.ranks, self._copies)
            self.module.eval()  # dropout and the like are for the loss alone
            with torch.no_grad():
                self.sampler.begin_epoch(epoch, self.module.view(self.train.n_items))
            self._learning_rate = self.config.learning_rate_at(epoch)
            totals = torch.zeros((), dtype=torch.float64)
            self._drawn.zero_()
            for step, batch in enumerate(self._batches(epoch)):
                totals += self._step(step, batch)
            loss, errors = self.ranks.sum(torch.stack([totals, self._drawn.sum()]).cpu().numpy())
        self._label_errors = float(errors) / self.train.whole.n
        return float(loss) / self.train.whole.n

    def _batches(self, epoch: int) -> Iterator[Batch]:
        """Each step's positives of this rank, in the order that all ranks share; none in some steps."""
        key, n, size = rng.stream_key(self.config.seed, "shuffle", epoch), self.train.whole.n, self._batch_size
        own = self.sampler.order(epoch)
        length = size * max(1, min(WINDOW, POSITIVES // size))
        for start in range(0, n, length):
            window = np.arange(start, min(start + length, n))
            order = rng.permutation(key, n, window) if own is None else own[window]
            owners = np.searchsorted(self._firsts, order, side="right") - 1  # the ranks that have them
            places = np.arange(len(order)) // size * self.ranks.size + owners
            counts = np.bincount(places, minlength=-(-len(order) // size) * self.ranks.size).reshape(-1, self.ranks.size)
            mine = torch.tensor(order[owners == self.ranks.rank] - self.train.whole.first)
            for batch, most in zip(torch.split(mine, counts[:, self.ranks.rank].tolist()), counts.max(axis=1), strict=True):
                yield Batch(self._users[batch], self._items[batch], int(most))

    def _step(self, step: int, batch: Batch) -> Tensor:
        """Negatives, gradients and Adam for one batch; returns the summed loss, on the device."""
        users, positives, most = batch
        for parameter in self._named.values():
            parameter.grad = None
        view = self.module.view(self._lookups)
        self.module.eval()
        with torch.no_grad():
            drawn = self.sampler.sample(users, positives, Scored(view, self._scored), step)
        self.module.train()
        scores, drawn = self._scores_of(view, users, positives, drawn)  # (B, 1 + K)
        r_ui, r_uj = scores.detach()[:, 0], scores.detach()[:, 1:]
        loss, to_positive, to_negative = self.config.loss_of(r_ui, r_uj, drawn)
        if self._learns:
            self.sampler.feedback(users, drawn.ids, torch.sigmoid(r_uj - r_ui[:, None]))
        roots, gradients = [scores], [torch.cat([to_positive[:, None], to_negative], dim=1)]
        if self._perturbation:
            items = torch.cat([positives[:, None], drawn.ids.expand(len(users), -1)], dim=1)
            roots.append(self._perturbed(users, items, gradients[0]))
            there = roots[1].detach()
            loss_there, to_positive, to_negative = self.config.loss_of(there[:, 0], there[:, 1:], drawn)
            gradients.append(torch.cat([to_positive[:, None], to_negative], dim=1))
            loss = loss + loss_there
        if self._l2:
            roots.append(self._penalty(users, positives, drawn.ids))
            gradients.append(torch.ones(()))
        torch.autograd.backward(roots, gradients)
        for parameter in self._named.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:  # as embeddings of a module of the user's own may make them
                parameter.grad = parameter.grad.to_dense()
        whole, tables = ([_gradient_of(each) for each in part] for part in (self._dense, self._tables))
        touched = torch.cat([positives, drawn.ids.reshape(-1)])
        self._sum(whole, tables, touched, min(most * (1 + drawn.ids.shape[1]), self.train.n_items))
        self._adam.step([_gradient_of(each) for each in self._named.values()], self._learning_rate)
        self._note_known(users, drawn)
        lost: Tensor = loss.sum(dtype=torch.float64)
        return lost

    def _scores_of(self, view: View, users: Tensor, positives: Tensor, drawn: Negatives) -> tuple[Tensor, Negatives]:
        """Scores of [positive | negatives], (B, 1 + K). Negatives of layers are mixed here, where autograd sees the layers, and
        what was drawn then has ids (B, K (L + 1)) and no blend left."""
        ids = drawn.ids
        if ids.ndim == 3:
            assert isinstance(view, LayeredFactors), "only such a view offers layers to a sampler"
            blend: Tensor = drawn.blend  # type: ignore[assignment]
            return view.mixed(users, positives, ids, blend), drawn._replace(ids=ids.flatten(1), blend=None)
        if len(ids) < len(users):  # shared by all
            parts = [self._scored(view, users, items) for items in (positives[:, None], ids)]
            return torch.cat(parts, dim=1), drawn
        return self._scored(view, users, torch.cat([positives[:, None], ids], dim=1)), drawn

    def _penalty(self, users: Tensor, positives: Tensor, ids: Tensor) -> Tensor:
        """L2 of a batch, see `srns.engines.plain`."""
        if len(ids) == len(users):
            of_users, of_items = self.module.squares(users, torch.cat([positives[:, None], ids], dim=1))
            return self._l2 / 2 * (of_users.sum() + of_items[:, 0].sum() + of_items[:, 1:].mean(dim=1).sum())
        of_users, of_positives = self.module.squares(users, positives[:, None])
        of_shared = self.module.squares(users[:1], ids)[1]
        return self._l2 / 2 * (of_users.sum() + of_positives.sum() + len(users) * of_shared.mean())

    def _scored(self, view: View, users: Tensor, items: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16) if self.config.amp else nullcontext():
            return self._score(view, users, items).float()

    def _perturbed(self, users: Tensor, items: Tensor, slopes: Tensor) -> Tensor:
        """Scores of items (B, 1 + K) by embeddings moved in the direction that raises the loss, whose gradient at the scores is
        `slopes`; see `srns.engines.plain`."""
        assert isinstance(self.module, GMFModule | MLPModule)
        rows = self.module.rows(users, items)
        with torch.autocast(self.device.type, torch.bfloat16) if self.config.amp else nullcontext():
            directions = torch.autograd.grad(self.module.score_rows(*rows), rows, slopes)
            unit = (torch.nn.functional.normalize(each, dim=-1, eps=TINY) for each in directions)
            moved = (row + self._perturbation * each for row, each in zip(rows, unit, strict=True))
            return self.module.score_rows(*moved).float()

    def start_from(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Begin with the parameters of a trained model, of this rank's users."""
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(torch.tensor(tensors[name]))

    def memories(self) -> dict[str, NDArray[Any]]:
        """What the sampler leaves to a run that goes on with more data."""
        return {name: np.array(value.detach().cpu().numpy()) for name, value in self.sampler.memories().items()}

    def take_over(self, memories: Mapping[str, NDArray[Any]]) -> None:
        with self.device:
            self.sampler.take_over({name: torch.tensor(value) for name, value in memories.items()})

    def _note_known(self, users: Tensor, drawn: Negatives) -> None:
        """Add up how much of the negatives each known positive is, as the plain engine does."""
        if self._known is None or not len(self._known):
            return
        ids, share = drawn.ids, drawn.share().expand(len(users), 1)
        if len(ids) < len(users):  # known ones are outside train, so that shared negatives have weight 1 for their users
            by_user = torch.bincount(users, weights=share[:, 0], minlength=self.train.n_users)
            of_known, items = self._known // self.train.n_items, self._known % self.train.n_items
            self._drawn += by_user[of_known] * torch.bincount(ids[0], minlength=self.train.n_items)[items]
            return
        pairs = users[:, None] * self.train.n_items + ids
        place = torch.searchsorted(self._known, pairs).clamp(max=len(self._known) - 1)
        parts = (self._known[place] == pairs) * (share if drawn.weight is None else share * drawn.weight)
        self._drawn.index_add_(0, place.reshape(-1), parts.reshape(-1))

    def observations(self) -> dict[str, float]:
        """What was drawn in the last epoch, see `srns.samplers.observations`."""
        found = {"label_error_ratio": self._label_errors} if self._known is not None else {}
        return found | self.sampler.observations(self.ranks.sum)

    def known_draws(self) -> NDArray[np.float64]:
        """How often each known positive of this rank's users was a negative in the last epoch, in units of positives."""
        return np.array(self._drawn.cpu().numpy())

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that `load_state_dict` needs to go on exactly, of this rank's users."""
        state: dict[str, Any] = {**self._adam.state_dict()}
        state |= {f"buffer.{name}": value for name, value in self.module.named_buffers()}
        state |= {f"sampler.{name}": value for name, value in self.sampler.state_dict().items()}
        return {name: np.array(value.detach().cpu().numpy()) for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        with self.device, torch.no_grad():
            tensors = {name: torch.tensor(value) for name, value in state.items()}
            self._adam.load_state_dict(tensors)
            for name, buffer in self.module.named_buffers():
                buffer.copy_(tensors[f"buffer.{name}"])
            prefix = "sampler."
            self.sampler.load_state_dict({n[len(prefix) :]: value for n, value in tensors.items() if n.startswith(prefix)})

    def _check_rows(self, factory: Factory | None) -> None:
        """Refuse a module of one's own that says of the wrong tensors, or of none, that they have a row per user."""
        parameters, buffers = dict(self.module.named_parameters()), dict(self.module.named_buffers())
        wanted: dict[str, tuple[tuple[str, ...], Mapping[str, Tensor], int]] = {
            "user_rows": (self.module.user_rows, {**parameters, **buffers}, self.train.n_users),
            "item_rows": (self.module.item_rows, parameters, self.train.n_items),
        }
        for field, (names, known, rows) in wanted.items():
            wrong = [name for name in names if name not in known or known[name].shape[:1] != (rows,)]
            if wrong:
                there = ", ".join(known).replace("module.", "")
                own = wrong[0].removeprefix("module.")
                raise ConfigError(f"{field} names {own!r}, which is no parameter with {rows:,} rows; there are: {there}")
        if factory is not None and self.ranks.size > 1 and not self.module.user_rows:
            raise ConfigError(
                "several ranks need to know which parameters of your module have a row per user: set user_rows = (...)"
            )

    def by_user(self, name: str) -> bool:
        """Whether a tensor of the state has a row for each user of this rank."""
        kind, _, rest = name.partition(".")
        if kind != "sampler":
            return rest in self.module.user_rows
        return self.sampler.by_user(rest, self.user_tensors)

    @property
    def user_tensors(self) -> tuple[str, ...]:
        """The names of model tensors with a row for each user of this rank."""
        return tuple(name.removeprefix("module.") for name in self.module.user_rows)


def make_module(config: RunConfig, train: Interactions, total: Sum, factory: Factory | None = None) -> Trainable:
    """The scorer that a run trains, at its start; `factory` makes a module of the user's own from the training data."""
    if factory is not None:
        return AnyModule(factory(train))
    sizes: dict[str, Any] = {"n_users": train.n_users, "n_items": train.n_items, "dim": config.dim, "std": config.init_std}
    start: dict[str, Any] = {**sizes, "seed": config.seed, "first_user": train.whole.first_user}
    if config.scorer == "mlp":
        return MLPModule(MLP.init(hidden_layers=config.hidden_layers, **start))
    if config.scorer == "lightgcn":
        return LightGCNModule(GMF.init(learn_beta=False, **start), Graph(train), config.propagation_layers, total)
    return GMFModule(GMF.init(learn_beta=config.learn_beta, **start), config.learn_beta)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """What torch draws within the block, such as dropout, depends on `seed` alone; the caller's generators are given back."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would reach every device there is
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


@contextmanager
def _threads(wanted: int) -> Iterator[None]:
    """So many threads of torch within the block; the caller's number after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_of(config: RunConfig, several: bool = False) -> torch.device:
    """The device of this rank."""
    if several and ":" in config.device:
        raise ConfigError(f"device = {config.device!r}: each rank has a device of its own; say cuda or auto")
    if config.device == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(config.device)
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device = {config.device!r}: {str(error).splitlines()[0]}") from None
    return device


def _gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "a step makes one where autograd made none"
    return parameter.grad


def _scores(view: View, users: Tensor, items: Tensor) -> Tensor:
    return view(users, items)
