"""The service behind a real nginx, configured as docs/serving.md says."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from srns.presets import make_config
from srns.recommender import Recommender
from srns.runs import train_run
from srns.simulation import simulate

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
pytestmark = pytest.mark.skipif(
    not NGINX or not shutil.which("openssl"), reason="nginx and openssl are not both installed (apt-get install nginx-light)"
)
PAGE = Path(__file__).parent.parent / "docs" / "serving.md"
ANN = ("ann", "Zx-correct horse")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proxied")
    data = simulate(n_users=40, n_items=30, n_interactions=600, seed=1).interactions
    users = ["a/b" if user == "u01" else user for user in data.user_ids.take(data.users)]
    lines = (f"{user},{item}\n" for user, item in zip(users, data.item_ids.take(data.items), strict=True))
    (folder / "clicks.csv").write_text("user_id,item_id\n" + "".join(lines), encoding="utf-8")
    train_run(folder / "clicks.csv", make_config({"dim": 4, "epochs": 2, "engine": "plain"}), out=folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def service(serve: Callable[..., Any], run: Path) -> Any:
    return serve(run)


@pytest.fixture(scope="module")
def proxy(service: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of nginx with the configuration of the page, and its certificate. Ports and files are those of this test."""
    home = tmp_path_factory.mktemp("nginx")
    certificate, key, users = home / "shop.pem", home / "shop.key", home / "users"
    make = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    names = ["-subj", "/CN=shop", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make, *names], check=True, capture_output=True, timeout=60)
    hashed = subprocess.run(["openssl", "passwd", "-apr1", ANN[1]], check=True, capture_output=True, text=True, timeout=60)
    users.write_text(f"{ANN[0]}:{hashed.stdout}", encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (block,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    own = {
        "127.0.0.1:8000": f"127.0.0.1:{service.port}",
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/ssl/shop.pem": str(certificate),
        "/etc/ssl/shop.key": str(key),
        "/etc/nginx/users": str(users),
    }
    for written, here in own.items():
        assert block.count(written) == 1, written
        block = block.replace(written, here)
    folders = "".join(f"{kind}_temp_path {home};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    around = "user root;\n" if os.geteuid() == 0 else ""  # the folders of tests are closed to others
    around += f"daemon off; worker_processes 1; pid {home}/pid; error_log {home}/log;\nevents {{}}\n"
    (home / "nginx.conf").write_text(f"{around}http {{\naccess_log off;\n{folders}{block}}}\n", encoding="utf-8")
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-p", str(home), "-e", f"{home}/log", "-c", "nginx.conf"])
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (home / "log").read_text(encoding="utf-8")
            time.sleep(0.1)
        yield f"https://127.0.0.1:{port}", certificate
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def client(proxy: tuple[str, Path]) -> Iterator[httpx.Client]:
    """Somebody who may come in, from another address than the proxy's."""
    url, certificate = proxy
    transport = httpx.HTTPTransport(verify=ssl.create_default_context(cafile=certificate), local_address="127.0.0.2")
    with httpx.Client(base_url=url, auth=ANN, transport=transport, timeout=30) as found:
        yield found


@pytest.mark.parametrize("user", ["u02", "a/b"])
def test_recommendations_come_through(client: httpx.Client, run: Path, user: str) -> None:
    ids = Recommender.load(run).recommend(user, 5)[0].tolist()
    path = f"/recommender/users/{user.replace('/', '%2F')}/recommendations"
    assert [each["item"] for each in client.get(path, params={"k": 5}).json()["items"]] == ids
    asked = client.post("/recommender/recommendations", json={"users": [user], "k": 5}).json()["recommendations"]
    assert [each["item"] for each in asked[0]["items"]] == ids


def test_nobody_comes_in_without_a_password(client: httpx.Client) -> None:
    for path in ("/recommender/", "/recommender/users/u02/recommendations", "/recommender/health", "/recommender/metrics"):
        for auth in (None, (ANN[0], "wrong"), ("bob", ANN[1])):
            request = client.build_request("GET", path)
            answer = client.send(request, auth=httpx.BasicAuth(*auth) if auth else None)
            assert answer.status_code in ((401,) if "metrics" not in path else (401, 403)), (path, auth)


def test_the_page_works_below_a_path(client: httpx.Client) -> None:
    assert client.get("/recommender").headers["location"].endswith("/recommender/")
    page = client.get("/recommender/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    links = {link for link in re.findall(r'(?:href|src)="([^"#]+)"', page.text) if not link.startswith("data:")}
    assert {"page.js", "page.css", "docs", "metrics"} <= links
    for link in links:
        assert not re.match("/|[a-z]+:", link), link
        answer = client.get(urljoin(str(page.url), link))
        assert answer.status_code == (403 if link == "metrics" else 200), link


@pytest.mark.parametrize(
    "path", ["metrics", "metrics?a=1", "/metrics", "./metrics", "%6Detrics", "x/../metrics", "x/..%2Fmetrics"]
)
def test_metrics_are_kept_from_everybody(proxy: tuple[str, Path], path: str) -> None:
    url, certificate = proxy
    sign = b64encode(":".join(ANN).encode()).decode()
    connection = HTTPSConnection(url[len("https://") :], context=ssl.create_default_context(cafile=certificate), timeout=30)
    try:  # httpx would tidy the path
        connection.request("GET", f"/recommender/{path}", headers={"authorization": f"Basic {sign}"})
        answer = connection.getresponse()
        assert answer.status == 403
        assert b"srns_" not in answer.read()
    finally:
        connection.close()


def test_a_request_keeps_its_id_and_its_client(client: httpx.Client, service: Any) -> None:
    given = client.get("/recommender/health", headers={"x-request-id": "from-the-shop-17"}).headers["x-request-id"]
    made = client.get("/recommender/health").headers["x-request-id"]
    assert given == "from-the-shop-17"
    assert re.fullmatch("[0-9a-f]{32}", made), "nginx makes one"
    logged: dict[str, Any] = {}
    deadline = time.monotonic() + 10
    while not {given, made} <= logged.keys() and time.monotonic() < deadline:  # a request is logged when its answer is out
        time.sleep(0.05)
        lines = [line for line in service.log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        logged = {line["id"]: line for line in map(json.loads, lines) if line["event"] == "request"}
    for request in (given, made):
        assert (logged[request]["path"], logged[request]["client"]) == ("/health", "127.0.0.2")


def test_large_bodies_stop_at_the_proxy(client: httpx.Client) -> None:
    assert client.post("/recommender/recommendations", content=b"x" * 300_000).status_code == 413
