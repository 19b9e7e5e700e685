"""For people: the page at /, and the description of the interface at /docs. Nothing is loaded from elsewhere."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response

from srns.page import Page, policy

FILES = {"/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css"), "/page.js": ("page.js", "text/javascript")}


def add(app: FastAPI) -> None:
    """Routes for the files of the page, read once, and for /docs."""
    for path, (name, kind) in FILES.items():
        content = resources.files("srns.serving").joinpath(name).read_bytes()
        app.add_api_route(path, _file(content, kind), methods=["GET"], include_in_schema=False)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(described(app.openapi()).html(), headers={"content-security-policy": policy()})


def _file(content: bytes, kind: str) -> Any:
    async def send() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return send


def described(schema: dict[str, Any]) -> Page:
    """The OpenAPI description as a page."""
    page = Page("srns: the HTTP interface", "The same for programs: /openapi.json")
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            page.section(f"{method.upper()} {path}", about.get("description", ""))
            rows = [
                [each["name"], each["in"], _kind(each["schema"]), _default(each["schema"]), each.get("description", "")]
                for each in about.get("parameters", [])
            ]
            if body := about.get("requestBody"):
                rows += _fields(schema, body["content"]["application/json"]["schema"], "body")
            if rows:
                page.table(["parameter", "where", "type", "default", "meaning"], rows, "Asked")
            answers = about["responses"]["200"].get("content", {}).get("application/json")
            if answers:
                shown = [[name, kind, text] for name, _, kind, _, text in _fields(schema, answers["schema"], "")]
                page.table(["field", "type", "meaning"], shown, "Answered")
    page.section("Errors", 'Every other answer is JSON: {"error": "what is wrong"}.')
    some = next(iter(schema["paths"].values()))
    statuses = next(iter(some.values()))["responses"]
    page.table(["status", "when"], [[status, text["description"]] for status, text in statuses.items() if status != "200"])
    return page


def _fields(schema: dict[str, Any], of: dict[str, Any], where: str) -> list[list[str]]:
    named = schema["components"]["schemas"][of["$ref"].rsplit("/", 1)[1]]
    return [
        [name, where, _kind(each), _default(each), each.get("description", "")] for name, each in named["properties"].items()
    ]


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[1])
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        most = f", at most {schema['maxItems']}" if "maxItems" in schema else ""
        return f"list of {_kind(schema['items'])}{most}"
    bounds = [f"{word} {schema[name]:g}" for name, word in (("minimum", "from"), ("maximum", "to")) if name in schema]
    return " ".join([str(schema.get("type", "anything")), *bounds])


def _default(schema: dict[str, Any]) -> str:
    return json.dumps(schema["default"]) if schema.get("default") is not None else ""
