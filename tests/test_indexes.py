"""Factors and indexes for use elsewhere: read back by other libraries, and searched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import srns
from srns import indexes
from srns.cli import app
from srns.errors import ConfigError


@pytest.fixture(scope="module")
def model() -> srns.Recommender:
    data = srns.simulate(n_users=200, n_items=150, n_interactions=5_000, seed=2).interactions
    return srns.Recommender(dim=8, epochs=4, learn_beta=True, seed=1).fit(data)


def test_tables_hold_ids_and_vectors_whose_products_are_the_scores(model: srns.Recommender, tmp_path: Path) -> None:
    record = indexes.export(model, "parquet", tmp_path)
    users, items = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("users", "items"))
    assert record["files"] == ["users.parquet", "items.parquet"]
    scores = np.stack(users["vector"].to_list()) @ np.stack(items["vector"].to_list()).T
    assert scores == pytest.approx(model.model_.score_all(np.arange(200)), abs=1e-5)
    best, values = model.recommend(users["id"][7], k=1, exclude_seen=False)
    assert items["id"][int(scores[7].argmax())] == best[0]
    assert scores[7].max() == pytest.approx(values[0], abs=1e-5)
    indexes.export(model, "npz", tmp_path)
    with np.load(tmp_path / "factors.npz", allow_pickle=False) as arrays:
        assert arrays["users"] @ arrays["items"].T == pytest.approx(scores, abs=1e-5)
        assert arrays["items_ids"].tolist() == items["id"].to_list()


def test_text_ids_load_without_pickle(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": ["ann", "bob", "cléo"] * 6, "item": [f"i/{n % 7}" for n in range(18)]})
    model = srns.Recommender(dim=2, epochs=1, engine="plain").fit(srns.read(frame))
    indexes.export(model, "npz", tmp_path)
    with np.load(tmp_path / "factors.npz", allow_pickle=False) as arrays:
        assert set(arrays["users_ids"].tolist()) == {"ann", "bob", "cléo"}


def brute_force(items: Any, query: Any, k: int) -> set[int]:
    return set(sorted(range(len(items)), key=lambda i: -float(items[i] @ query))[:k])


@pytest.mark.parametrize("kind", ["faiss", "usearch"])
def test_an_index_finds_what_brute_force_finds_and_tells_its_recall(
    model: srns.Recommender, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(kind, reason=f"{kind} is not installed")
    monkeypatch.setattr(indexes, "SECONDS", 0.02)
    record = indexes.export(model, kind, tmp_path)
    assert record == json.loads((tmp_path / "export.json").read_text())
    queries, items = model.user_factors[:60], model.item_factors
    if kind == "faiss":
        import faiss

        index = faiss.read_index(str(tmp_path / "items.faiss"))
        if record["search_width"]:
            index.hnsw.efSearch = record["search_width"]
        found = index.search(queries, 10)[1]
    else:
        from usearch.index import Index

        found = Index.restore(str(tmp_path / "items.usearch")).search(queries, 10).keys
    hits = [len(brute_force(items, query, 10) & set(map(int, mine))) for query, mine in zip(queries, found, strict=True)]
    assert np.mean(hits) / 10 >= 0.9
    assert record["recall"] >= 0.95
    assert set(record["queries_per_second"]) == {"approximate", "exact"}
    ids = pl.read_parquet(tmp_path / "items.parquet")
    assert ids["id"].to_list() == model.split_.train.item_ids.labels.to_list()


def test_a_search_is_widened_until_its_recall_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "SECONDS", 0.01)
    truth = np.tile(np.arange(10), (5, 1))

    def search_of(width: int) -> indexes.Search:
        found = np.where(np.arange(10) < width / 13, np.arange(10), -1)  # right in ever more places
        return lambda query: found[None]

    measured = indexes._widened(search_of, np.zeros((5, 3), np.float32), truth)
    assert (measured.width, measured.recall) == (128, 1.0)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    data = srns.simulate(n_users=30, n_items=20, n_interactions=200).interactions
    with pytest.raises(ConfigError, match="no products of factors"):
        indexes.export(srns.Recommender(scorer="ease").fit(data), "npz", tmp_path)
    model = srns.Recommender(dim=2, epochs=1, engine="plain").fit(data)
    with pytest.raises(ConfigError, match="format 'onnx' is unknown; expected one of: parquet, npz, faiss, usearch"):
        indexes.export(model, "onnx", tmp_path)


def test_commands_for_what_a_model_is_for(model: srns.Recommender, tmp_path: Path) -> None:
    model.save(tmp_path / "run")

    def call(*arguments: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, [arguments[0], str(tmp_path / "run"), *arguments[1:], "--json"])
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    user, item = model.split_.train.user_ids.label(3), model.split_.train.item_ids.label(4)
    reasons = call("explain", "--user", str(user), "--item", str(item), "-k", "2")["because_of"]
    ids, shares = model.explain(user, item, 2)
    assert [reason["item_id"] for reason in reasons] == ids.tolist()
    assert [reason["adds"] for reason in reasons] == pytest.approx(shares, rel=1e-5)
    new = call("recommend", "--had", str(item), "-k", "3")["recommendations"]
    assert [each["item_id"] for each in new] == model.recommend_for([item], 3)[0].tolist()
    assert call("export", "--format", "npz")["files"] == ["factors.npz"]
    assert (tmp_path / "run" / "export-npz" / "factors.npz").exists()
    refused = CliRunner().invoke(app, ["recommend", str(tmp_path / "run"), "--had", str(item), "--out", "x.csv"])
    assert refused.exit_code == 2
    assert "what somebody new gets is printed" in refused.stderr
