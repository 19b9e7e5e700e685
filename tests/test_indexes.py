"""Factors and indexes for use elsewhere: read back by other libraries, and searched."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from threadpoolctl import threadpool_info
from typer.testing import CliRunner

import srns
from srns import indexes
from srns.cli import app
from srns.errors import ArtifactError, ConfigError


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


def reloaded(folder: Path, record: dict[str, Any], queries: Any, k: int) -> Any:
    """What the file finds, searched as docs/export.md says: (B, k) positions."""
    if record["format"] == "faiss":
        import faiss

        index = faiss.read_index(str(folder / "items.faiss"))
        assert isinstance(index, faiss.IndexFlatIP) == (record["kind"] == "exact")
        if record["search_width"]:
            assert index.hnsw.efSearch == record["search_width"], "kept in the file"
        return index.search(queries, k)[1]
    from usearch.index import Index

    graph = Index.restore(str(folder / "items.usearch"))
    graph.expansion_search = record["search_width"]  # type: ignore[misc] # its stubs forget the setter
    return graph.search(queries, k).keys


def recall_by_sorting(items: Any, queries: Any, found: Any) -> float:
    hits = []
    for query, mine in zip(queries, found, strict=True):
        best = sorted(range(len(items)), key=lambda i: -float(items[i] @ query))[:10]
        hits.append(len(set(best) & set(map(int, mine))))
    return float(np.mean(hits)) / 10


CASES = [  # rates of graph, exact search and numpy, recall that is asked for; what the index is then, and what is said
    ("faiss", (2.0, 1.0, 0.5), 0.5, "approximate", "a graph is searched"),
    ("faiss", (1.0, 2.0, 0.5), 0.5, "exact", "exact search is quicker for a catalogue of this size, and exact search is what"),
    ("faiss", (2.0, 1.0, 0.5), 1.01, "exact", "even the widest search of a graph has a recall of"),
    ("usearch", (2.0, 1.0, 0.5), 0.5, "approximate", "a graph is searched"),
    ("usearch", (1.0, 2.0, 0.5), 0.5, "approximate", "exact search is quicker for a catalogue of this size; the graph is kept"),
    ("faiss", (2.0, 1.0, 3.0), 0.5, "approximate", "a graph is searched"),
    (
        "usearch",
        (2.0, 1.0, 3.0),
        0.5,
        "approximate",
        "exact search by numpy is quicker for a catalogue of this size;",
    ),
    ("usearch", (2.0, 1.0, 0.5), 1.01, "approximate", "even the widest search of a graph has a recall of"),
]


@pytest.mark.parametrize(("kind", "rates", "enough", "what", "said"), CASES)
def test_an_index_is_what_its_record_says(
    kind: str,
    rates: tuple[float, float, float],
    enough: float,
    what: str,
    said: str,
    model: srns.Recommender,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip(kind, reason=f"{kind} is not installed")
    answers = iter(rates)
    monkeypatch.setattr(indexes, "rate", lambda search, queries: search(queries[:1]) is not None and next(answers))
    monkeypatch.setattr(indexes, "RECALL", enough)
    monkeypatch.setattr(indexes, "WIDTHS", (4, 16))
    monkeypatch.setattr(indexes, "LINKS", 4)  # few, so that not all is found
    monkeypatch.setattr(indexes, "QUERIES", 200)
    record = indexes.export(model, kind, tmp_path)
    assert record == json.loads((tmp_path / "export.json").read_text())
    assert record["kind"] == what
    assert record["note"].startswith(said)
    assert (record["search_width"] == 0) == (what == "exact")
    queries, items = model.user_factors[model.split_.train.user_counts > 0], model.item_factors
    measured = recall_by_sorting(items, queries, reloaded(tmp_path, record, queries, 10))
    assert record["recall"] == pytest.approx(measured, abs=0.002)
    assert record["queries_per_second"] == dict(zip(("approximate", "exact", "numpy"), rates, strict=True))
    ids = pl.read_parquet(tmp_path / "items.parquet")
    assert ids["id"].to_list() == model.split_.train.item_ids.labels.to_list()


@pytest.mark.parametrize("kind", ["faiss", "usearch"])
def test_speed_is_that_of_one_thread_and_the_callers_threads_stay(
    kind: str, model: srns.Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(kind, reason=f"{kind} is not installed")
    import_module(kind)

    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info()]

    before, during = threads(), []

    def watched(search: Any, queries: Any) -> float:
        during.extend(threads())
        return 1.0

    monkeypatch.setattr(indexes, "rate", watched)
    indexes.export(model, kind, tmp_path)
    assert set(during) == {1}
    assert threads() == before


@pytest.mark.parametrize("kind", ["faiss", "usearch"])
def test_exact_search_is_that_of_brute_force(kind: str, model: srns.Recommender) -> None:
    library = pytest.importorskip("usearch.index" if kind == "usearch" else kind, reason=f"{kind} is not installed")
    index = indexes.LIBRARIES[kind](library, model.item_factors)
    queries = model.user_factors[:20]
    assert recall_by_sorting(model.item_factors, queries, index.exact(queries, 10)) == 1.0
    assert recall_by_sorting(model.item_factors, queries, indexes.by_numpy(model.item_factors, queries, 10)) == 1.0


def test_a_rate_is_how_often_a_search_is_done_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(indexes.time, "perf_counter", lambda: clock[0])

    def search(query: Any) -> None:
        assert query.shape == (1, 3)
        clock[0] += 0.01

    assert indexes.rate(search, np.zeros((1000, 3), np.float32)) == pytest.approx(100)


@pytest.mark.parametrize("kind", ["faiss", "usearch"])
def test_without_the_library_nothing_is_written(
    kind: str, model: srns.Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "usearch.index" if kind == "usearch" else kind, None)
    with pytest.raises(ConfigError, match=f"format '{kind}' needs {kind}, which is not installed"):
        indexes.export(model, kind, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_that_fails_leaves_the_one_before_it(
    model: srns.Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexes.export(model, "parquet", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"users.parquet", "items.parquet", "export.json"}

    def full() -> dict[str, Any]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(indexes, "environment", full)  # comes after the tables
    with pytest.raises(ArtifactError, match="No space left on device"):
        indexes.export(srns.Recommender(dim=2, epochs=1, engine="plain").fit(model.split_), "parquet", tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


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
    explained = call("explain", "--user", str(user), "--item", str(item), "-k", "2")
    reasons = explained["because_of"]
    theirs = model.split_.train.items_of(3).tolist()
    assert explained["had"] == (4 in theirs)
    own = str(model.split_.train.item_ids.label(theirs[0]))
    assert call("explain", "--user", str(user), "--item", own)["had"]
    said = CliRunner().invoke(app, ["explain", str(tmp_path / "run"), "--user", str(user), "--item", own]).stdout
    assert f"{user} had {own} already" in said
    ids, shares = model.explain(user, item, 2)
    assert [reason["item_id"] for reason in reasons] == ids.tolist()
    assert [reason["adds"] for reason in reasons] == pytest.approx(shares, rel=1e-5)
    new = call("recommend", "--had", str(item), "-k", "3")["recommendations"]
    assert [each["item_id"] for each in new] == model.recommend_for([item], 3)[0].tolist()
    assert call("export", "--format", "npz")["files"] == ["factors.npz"]
    factors = tmp_path / "run" / "export-npz" / "factors.npz"
    assert factors.exists()
    factors.write_text("mine")
    said = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--format", "npz"])
    assert (said.exit_code, f"{factors} is there already: --replace puts the new export" in said.stderr) == (2, True)
    assert factors.read_text() == "mine"
    other = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--format", "parquet", "--out", str(factors.parent)])
    assert "factors.npz is there already" in other.stderr
    (factors.parent / "items.faiss").write_text("mine")
    here = ("--out", str(factors.parent), "--replace")
    assert call("export", "--format", "parquet", *here)["files"] == ["users.parquet", "items.parquet"]
    assert not factors.exists(), "export.json tells of one format"
    assert call("export", "--format", "npz", "--replace")["files"] == ["factors.npz"]
    assert sorted(each.name for each in factors.parent.iterdir()) == ["export.json", "factors.npz", "items.faiss"]
    assert np.load(factors)["users"].shape == model.user_factors.shape
    pytest.importorskip("usearch", reason="usearch is not installed")
    told = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--format", "usearch"])
    record = json.loads((tmp_path / "run" / "export-usearch" / "export.json").read_text())
    assert f"recall@10 {record['recall']:.4f} of exact search, search width {record['search_width']};" in told.stdout
    assert record["note"] in told.stdout
    refused = CliRunner().invoke(app, ["recommend", str(tmp_path / "run"), "--had", str(item), "--out", "x.csv"])
    assert refused.exit_code == 2
    assert "what somebody new gets is printed" in refused.stderr
