"""Scorers as the torch engine trains them: GMF, MLP, LightGCN, and any `torch.nn.Module` with a method `score(users, items)`.

Before each step the engine asks for a *view*: the parameters prepared as far as they can be shared by all scores of the step (a
propagation over the graph, the items' part of a first layer). The sampler and the loss score through the same view, and SRNS
keeps the tensors of views at the ends of epochs as its history.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from srns.errors import ConfigError
from srns.scorers.gmf import GMF
from srns.scorers.lightgcn import Graph
from srns.scorers.mlp import MLP, layers_of, named_layers

Sum = Callable[[Tensor], Tensor]  # over ranks, differentiable
embedding = nn.functional.embedding
CACHED = 1 << 19  # numbers


class View(Protocol):
    """A Score whose tensors can be kept and put back; items that all users share may be given once, (1, K)."""

    def __call__(self, users: Tensor, items: Tensor) -> Tensor: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def from_tensors(self, tensors: Mapping[str, Tensor]) -> View: ...


class Factors:
    """Scores that are products of a user's and an item's factors."""

    def __init__(self, users: Tensor, items: Tensor, beta: Tensor | None = None) -> None:
        self.users, self.items, self.beta = users, items, beta

    def __call__(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores of items (B, K) for users (B,), or of items (1, K) that they share: (B, K)."""
        rows = embedding(users, self.users)
        rows = rows if self.beta is None else rows * self.beta
        if len(items) == 1 < len(rows):
            return rows @ embedding(items[0], self.items).T
        if torch.is_grad_enabled() or rows.device.type != "cpu":
            return (embedding(items, self.items) * rows[:, None]).sum(-1)  # on a CPU 2.5 times as fast as a batched product
        # Without gradients a CPU takes some rows at a time: what it gathers stays in its cache, in memory that is used again.
        (n, k), dim = items.shape, rows.shape[1]
        size = max(1, CACHED // (k * dim))
        gathered, scores = rows.new_empty(min(size, n) * k, dim), rows.new_empty(n, k)
        for start in range(0, n, size):
            asked, users_rows = items[start : start + size], rows[start : start + size]
            part = torch.index_select(self.items, 0, asked.reshape(-1), out=gathered[: asked.numel()])
            torch.sum(part.view(-1, k, dim).mul_(users_rows[:, None]), dim=-1, out=scores[start : start + size])
        return scores

    def tensors(self) -> dict[str, Tensor]:
        return {"users": self.users if self.beta is None else self.users * self.beta, "items": self.items}

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> Factors:
        return Factors(tensors["users"], tensors["items"])


class LayeredFactors(Factors):
    """Factors whose items are the means of their rows in several layers, `layers`."""

    def __init__(self, users: Tensor, items: Tensor, layers: list[Tensor]) -> None:
        super().__init__(users, items)
        self.layers = layers

    def by_layer(self, users: Tensor, items: Tensor) -> Tensor:
        """Products of the users' rows (B, F) with the items' rows (B, K) in each layer: (B, K, L + 1)."""
        return self.in_layers(users, items[..., None].expand(*items.shape, len(self.layers)))

    def in_layers(self, users: Tensor, items: Tensor) -> Tensor:
        """The same of an item for each layer, items (B, K, L + 1): (B, K, L + 1)."""
        rows = embedding(users, self.users)[:, None]
        parts = [(embedding(items[..., at], layer) * rows).sum(-1) for at, layer in enumerate(self.layers)]
        return torch.stack(parts, dim=-1)

    def mixed(self, users: Tensor, positives: Tensor, items: Tensor, blend: Tensor) -> Tensor:
        """Scores of [positive | negatives], (B, 1 + K), where negative k is the mean over layers l of items[:, k, l] with a
        share blend[:, k, l] of the positive (MixGCF)."""
        of_positives = self.by_layer(users, positives[:, None])  # (B, 1, L + 1)
        of_negatives = torch.lerp(self.in_layers(users, items), of_positives.expand(items.shape), blend.to(of_positives.dtype))
        return torch.cat([of_positives, of_negatives], dim=1).mean(dim=-1)


class _Embeddings(nn.Module):
    """Rows of users and items: `user_rows` names the parameters with a row per user, which live on the user's rank alone, and
    `item_rows` those of which a step moves only the items it reads."""

    user_rows: ClassVar[tuple[str, ...]] = ("users",)
    item_rows: ClassVar[tuple[str, ...]] = ("items",)
    has_squares: ClassVar[bool] = True

    def __init__(self, users: NDArray[Any], items: NDArray[Any]) -> None:
        super().__init__()
        self.users, self.items = nn.Parameter(torch.tensor(users)), nn.Parameter(torch.tensor(items))

    def rows(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of users (B,) and items (B, K): (B, F), (B, K, F)."""
        return embedding(users, self.users), embedding(items, self.items)

    def squares(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """What L2 pulls on: squared lengths of the embeddings of users (B,) and items (B or 1, K), in the same shapes."""
        return embedding(users, self.users).square().sum(-1), embedding(items, self.items).square().sum(-1)


class GMFModule(_Embeddings):
    """r_ui = beta . (p_u * q_i); beta stays 1 unless it is to be learnt."""

    def __init__(self, model: GMF, learn_beta: bool) -> None:
        super().__init__(model.users, model.items)
        self.beta = nn.Parameter(torch.tensor(model.beta), requires_grad=learn_beta)

    def view(self, lookups: int) -> Factors:
        return Factors(self.users, self.items, self.beta)

    def score_rows(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores (B, K) by embeddings of users (B, F) and items (B, K, F)."""
        return (items * (users * self.beta)[:, None]).sum(-1)

    def model(self) -> GMF:
        return GMF(_array(self.users), _array(self.items), _array(self.beta))


class MLPModule(_Embeddings):
    """The perceptron of `srns.scorers.mlp`, trained."""

    def __init__(self, model: MLP) -> None:
        super().__init__(model.users, model.items)
        self.weights, self.biases = (
            nn.ParameterList(nn.Parameter(torch.tensor(each)) for each in part) for part in (model.weights, model.biases)
        )

    def view(self, lookups: int) -> Perceptron:
        """With fewer items than `lookups` of items, their part of the first layer is computed once for each."""
        of_items = self.items @ self.weights[0][:, self.items.shape[1] :].T if lookups >= len(self.items) else None
        return Perceptron(self.users, self.items, list(self.weights), list(self.biases), of_items)

    def score_rows(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores (B, K) by embeddings of users (B, F) and items (B, K, F)."""
        b, k, dim = items.shape
        places = torch.arange(b * k, device=items.device).reshape(b, k)
        view = Perceptron(users, items.reshape(-1, dim), list(self.weights), list(self.biases))
        return view(torch.arange(b, device=items.device), places)

    def model(self) -> MLP:
        weights, biases = (tuple(_array(each) for each in part) for part in (self.weights, self.biases))
        return MLP(_array(self.users), _array(self.items), weights, biases)


class Perceptron:
    """Scores of an MLP; `of_items` (n_items, d_1) is the items' part of the first layer, where it is known beforehand."""

    def __init__(
        self, users: Tensor, items: Tensor, weights: list[Tensor], biases: list[Tensor], of_items: Tensor | None = None
    ) -> None:
        self.users, self.items, self.weights, self.biases, self.of_items = users, items, weights, biases, of_items

    def __call__(self, users: Tensor, items: Tensor) -> Tensor:
        first, dim = self.weights[0], self.items.shape[1]
        items = items.expand(len(users), -1)
        user_part = embedding(users, self.users) @ first[:, :dim].T + self.biases[0]  # (B, d_1)
        if torch.is_grad_enabled() or user_part.device.type != "cpu":
            return self._rest(user_part[:, None] + self._item_part(items), torch.sigmoid)
        # As with factors: some rows at a time, and in place.
        size = max(1, CACHED // (items.shape[1] * user_part.shape[1]))
        parts = zip(torch.split(user_part, size), torch.split(items, size), strict=True)
        return torch.cat(
            [self._rest(self._item_part(some).add_(of_users[:, None]), torch.sigmoid_) for of_users, some in parts]
        )

    def _item_part(self, items: Tensor) -> Tensor:
        """(B, K, d_1), a new tensor."""
        if self.of_items is not None:
            return embedding(items, self.of_items)
        return embedding(items, self.items) @ self.weights[0][:, self.items.shape[1] :].T

    def _rest(self, z: Tensor, sigmoid: Callable[[Tensor], Tensor]) -> Tensor:
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            z = sigmoid(z) @ weight.T + bias
        return z[..., 0]

    def tensors(self) -> dict[str, Tensor]:
        return {"users": self.users, "items": self.items, **named_layers(self.weights, self.biases)}

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> Perceptron:
        weights, biases = layers_of(tensors)
        of_items = tensors["items"] @ weights[0][:, tensors["items"].shape[1] :].T
        return Perceptron(tensors["users"], tensors["items"], weights, biases, of_items)


class LightGCNModule(_Embeddings):
    """GMF over embeddings propagated along the interactions; L2 pulls on the embeddings themselves, as in its paper."""

    item_rows: ClassVar[tuple[str, ...]] = ()  # a step moves all

    def __init__(self, model: GMF, graph: Graph, layers: int, total: Sum) -> None:
        super().__init__(model.users, model.items)
        self.graph, self.layers, self.total = graph, layers, total

    def view(self, lookups: int) -> LayeredFactors:
        return LayeredFactors(*self.graph.propagate(self.users, self.items, self.layers, self.total))

    def model(self) -> GMF:
        """The propagated rows: what is scored with, no graph needed."""
        with torch.no_grad():
            view = self.view(0)
        return GMF(_array(view.users), _array(view.items), np.ones(view.items.shape[1], np.float32))


class AnyModule(nn.Module):
    """A module of the user's own: it needs `score(users (B,), items (B, K)) -> (B, K)`.

    It may have `squares(users, items)`, see above, for L2; `user_rows`, the names of parameters and buffers with a row per
    user, to be trained on several ranks; and `item_factors()`, (n_items, F), for similar items.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.user_rows = tuple(f"module.{name}" for name in getattr(module, "user_rows", ()))
        self.item_rows = tuple(f"module.{name}" for name in getattr(module, "item_rows", ()))
        self.has_squares = hasattr(module, "squares")

    def view(self, lookups: int) -> ModuleView:
        return ModuleView(self.module)

    def squares(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        return self.module.squares(users, items.expand(len(users), -1))  # type: ignore[operator, no-any-return]

    def model(self) -> ModuleModel:
        return ModuleModel(copy.deepcopy(self.module))


class ModuleView:
    """A module as a Score."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, users: Tensor, items: Tensor) -> Tensor:
        return self.module.score(users, items.expand(len(users), -1))  # type: ignore[operator, no-any-return]

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in self.module.state_dict().items()}

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> ModuleView:
        other = copy.deepcopy(self.module).eval()
        other.load_state_dict(dict(tensors))
        return ModuleView(other)


class ModuleModel:
    """A trained module of the user's own as the rest of the package uses models: NumPy in, NumPy out."""

    name: ClassVar[str] = "module"

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()
        self._device = next(module.parameters()).device

    def __call__(self, users: Any, items: Any) -> NDArray[Any]:
        """Scores of items (B, K) for users (B,): (B, K)."""
        with torch.no_grad():
            asked = (torch.tensor(np.asarray(ids), dtype=torch.int64, device=self._device) for ids in (users, items))
            return _array(self.module.score(*asked))  # type: ignore[operator]

    @property
    def item_factors(self) -> NDArray[Any]:
        if not hasattr(self.module, "item_factors"):
            raise ConfigError(f"{type(self.module).__name__} has no method item_factors(), (n_items, F), to compare items by")
        with torch.no_grad():
            return _array(self.module.item_factors())  # type: ignore[operator]

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {name: _array(tensor) for name, tensor in self.module.state_dict().items()}

    def from_tensors(self, tensors: Mapping[str, NDArray[Any]]) -> ModuleModel:
        other = copy.deepcopy(self.module)
        other.load_state_dict({name: torch.tensor(tensor) for name, tensor in tensors.items()})
        return ModuleModel(other)


Trainable = GMFModule | MLPModule | LightGCNModule | AnyModule


def _array(tensor: Tensor) -> NDArray[Any]:
    """A copy in main memory."""
    return np.array(tensor.detach().cpu().numpy())
