"""The routes: check what is asked, answer from the model in use.

One user takes about 0.1 ms to score for a catalogue of thousands, less than handing the work to a thread would, so it is done
on the event loop; reasons, batches, long lists, and models that turned out slower when they were tried, go to a thread
(`State.in_turn`), where their answers are also written as JSON.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import Field
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException

from srns import __version__
from srns.errors import ConfigError
from srns.recommender import Recommender
from srns.serving import answers, documents, listing, messages
from srns.serving.guard import Guard, RefusalError, error_body
from srns.serving.listing import Answer
from srns.serving.messages import (
    Answers,
    Error,
    Health,
    History,
    Recommendations,
    SimilarItems,
    Unknown,
    User,
    Users,
    check_length,
)
from srns.serving.metrics import Metrics
from srns.serving.quick import Quick
from srns.serving.settings import Limits, Settings
from srns.serving.state import Served, State, load

ASKED = {"k", "batch", "explained", "why", "items", "users", "listed", "body"}  # limits of what is in a request
Function = TypeVar("Function", bound=Callable[..., Any])
SHORT = 100  # items of a list that is made on the event loop, where one user is quick
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": Error, "description": "No such user or item"}}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": text}
    for status, text in {
        400: "The model cannot do this, or the request is no HTTP",
        408: "The request came too slowly",
        413: "The body is too large",
        422: "A parameter is wrong",
        429: "Too many costly requests at once, or no answer in time",
        431: "Address and headers are too large",
    }.items()
}


class AnyText(Convertor[str]):
    """An id within a path: whatever stands there, slashes and ends of lines too."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("label", AnyText())


def make_app(
    run: str | Path | Recommender,
    *,
    items: str | Path | None = None,
    limits: Limits | None = None,
    **settings: Any,
) -> FastAPI:
    """The service as an ASGI application, for uvicorn, hypercorn or to be mounted in your own.

    `run` is the folder of a run, which is watched for a newer model, or a trained Recommender, which stays. Other arguments are
    the fields of `srns.serving.Settings`. The model is loaded here; an application that mounts this one has to run its lifespan
    for the watch to begin. Limits on headers and slow clients are those of the server (`srns serve` sets them).
    """
    limits = limits or Limits()
    if isinstance(run, Recommender):
        if items is not None or settings:
            raise ConfigError("a Recommender is served as it is; give the folder of a run for items=... and other settings")
        return build(Served.of(run, "recommender", "in memory"), None, limits)
    asked = Settings(run=Path(run), items=None if items is None else Path(items), limits=limits, **settings)
    return build(load(asked), asked, limits)


def build(model: Served, settings: Settings | None, limits: Limits) -> FastAPI:
    """The application around a model that is loaded."""
    metrics = Metrics()
    state = State(model, settings, limits, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with state:
            yield

    app = FastAPI(
        title="srns",
        version=__version__,
        description='Recommendations of a model that `srns train` made. Every error is JSON: {"error": "what is wrong"}.',
        docs_url=None,  # its page would load scripts from elsewhere; ours is in `documents`
        redoc_url=None,
        lifespan=lifespan,
        responses=ERRORS,
        redirect_slashes=False,
    )
    app.state.serving = state
    app.router.route_class = Quick
    app.add_middleware(Guard, limits=limits, metrics=metrics, access_log=settings is None or settings.access_log)
    _handle_errors(app)
    _add_people(app, state)
    _add_items(app, state)
    _add_operations(app, state)
    documents.add(app)
    return app


class _Json(Response):
    """An answer of a model. Its headers are written down as they are, since making them takes as long as an answer to JSON."""

    def __init__(self, body: bytes, model: str) -> None:
        self.status_code, self.background, self.body = 200, None, body
        length = str(len(body)).encode()
        self.raw_headers = [(b"content-length", length), (b"content-type", b"application/json"), (b"x-model", model.encode())]


def _answer(model: Served, body: bytes) -> Response:
    return _Json(body, model.version)


async def _made(state: State, model: Served, make: Callable[[], Answer], seconds: float, short: bool) -> Response:
    """What `make` gives: at once where it is short, else in its turn."""
    if short and model.quick:
        return _answer(model, listing.encoded(make()))
    return _answer(model, await state.in_turn(lambda: listing.encoded_by_item(make()), seconds))


def _listed(state: State, model: Served, users: int, k: int, why: int) -> int:
    """Items and reasons in an answer, which has to be within the limits and what the model can give."""
    check_length(state.limits, users, k, why)
    if why and not model.explains:
        raise RefusalError(400, "this model gives no reasons; ask with why=0")
    return users * min(k, len(model.catalogue.labels)) * (1 + why)


def _takes(kind: Any) -> Callable[[Function], Function]:
    """Give a route's argument `asked` a type that is made with its application, whose limits are in it."""

    def declare(function: Function) -> Function:
        function.__annotations__["asked"] = kind
        return function

    return declare


def _add_people(app: FastAPI, state: State) -> None:
    limits = state.limits
    question, fields = messages.question(limits), messages.asked(limits)
    kinds = {"k": int, "why": int, "exclude_seen": bool, "unknown": Unknown}
    listed = messages.query("Listed", **{name: (kind, fields[name]) for name, kind in kinds.items()})
    had = messages.query(
        "Had", limit=(int, Field(min(50, limits.items), ge=1, le=limits.items, description="length of the list"))
    )
    searched = messages.query(
        "Searched",
        prefix=(str, Field("", max_length=200, description="how ids begin")),
        limit=(int, Field(min(20, limits.users), ge=1, le=limits.users, description="length of the list")),
    )
    bodies = APIRouter()  # where FastAPI reads what was sent

    @app.get("/users/{user:label}/recommendations", response_model=Recommendations, responses=NOT_FOUND, tags=["use"])
    @_takes(Annotated[listed, Query()])
    async def recommendations(user: str, asked: Any) -> Response:
        """What to recommend to a user. An id with a slash or other signs is percent-encoded."""
        model = state.model
        options = {"exclude_seen": asked.exclude_seen, "unknown": asked.unknown, "why": asked.why}
        seconds = model.expected(1, _listed(state, model, 1, asked.k, asked.why), explained=1 if asked.why else 0)
        make = partial(_only, answers.recommend, model, [user], asked.k, **options)
        return await _made(state, model, make, seconds, asked.k <= SHORT and not asked.why)

    @bodies.post("/recommendations", response_model=Answers, responses=NOT_FOUND, tags=["use"])
    @_takes(question)
    async def batch(asked: Any) -> Response:
        """The same for several users, or for somebody unknown who touched some items."""
        model = state.model
        users = len(asked.users) or 1
        listed = _listed(state, model, users, asked.k, asked.why)
        named = users + len(asked.items) + len(asked.exclude) + len(asked.candidates)
        explained = (users if asked.why else 0) + (1 if asked.items else 0)  # folding somebody in takes as long as reasons
        seconds = model.expected(users, listed + named, explained)
        short = len(asked.users) == 1 and asked.k <= SHORT and not (asked.why or asked.exclude or asked.candidates)
        return await _made(state, model, partial(answers.batch, model, asked), seconds, short)

    app.include_router(bodies)

    @app.get("/users/{user:label}/items", response_model=History, responses=NOT_FOUND, tags=["use"])
    @_takes(Annotated[had, Query()])
    async def items_of(user: str, asked: Any) -> Response:
        """What a user is known to have touched."""
        model = state.model
        seconds = model.expected(0, asked.limit)
        return await _made(state, model, partial(answers.history, model, user, asked.limit), seconds, asked.limit <= SHORT)

    @app.get("/users", response_model=Users, tags=["search"])
    @_takes(Annotated[searched, Query()])
    async def users(asked: Any) -> Response:
        """Users by the beginning of their id, sorted."""
        model = state.model
        return _answer(model, listing.encoded(answers.search(model, asked.prefix, asked.limit)))

    @app.get("/users/random", response_model=User, tags=["search"])
    async def random_user() -> Response:
        """Any user."""
        model = state.model
        return _answer(model, listing.encoded(answers.anybody(model)))


def _only(make: Callable[..., list[Answer]], *args: Any, **options: Any) -> Answer:
    (answer,) = make(*args, **options)
    return answer


def _add_items(app: FastAPI, state: State) -> None:
    near = messages.query("Near", k=(int, messages.asked(state.limits)["k"]))

    @app.get("/items/{item:label}/similar", response_model=SimilarItems, responses=NOT_FOUND, tags=["use"])
    @_takes(Annotated[near, Query()])
    async def similar(item: str, asked: Any) -> Response:
        """Items like one item."""
        model = state.model
        if not model.compares:
            raise RefusalError(400, "this model does not know which items are alike")
        seconds = model.expected(1, asked.k)
        return await _made(state, model, partial(answers.similar, model, item, asked.k), seconds, asked.k <= SHORT)


def _add_operations(app: FastAPI, state: State) -> None:
    @app.get("/health", response_model=Health, tags=["operation"])
    async def health() -> Response:
        """Whether the service answers, and from which model."""
        model = state.model
        return _answer(
            model,
            listing.encoded(
                {
                    "status": "ok",
                    "run": model.name,
                    "model": model.version,
                    "loaded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(model.loaded_at)),
                    "stale": state.failure is not None,
                    "users": len(model.users),
                    "items": model.recommender.split_.train.n_items,
                    "explains": model.explains,
                    "compares": model.compares,
                    "titles": model.catalogue.titles is not None,
                    "version": __version__,
                    "limits": state.limits.model_dump(include=ASKED),
                }
            ),
        )

    text: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "In the format of Prometheus"}
    }

    @app.get("/metrics", response_class=Response, responses=text, tags=["operation"])
    async def metrics() -> Response:
        """Counts and times, for Prometheus."""
        return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _handle_errors(app: FastAPI) -> None:
    def said(status: int, reason: str, headers: Any = None) -> Response:
        return Response(error_body(reason), status, headers, "application/json")

    @app.exception_handler(RefusalError)
    async def refused(_: Request, error: RefusalError) -> Response:
        return said(error.status, error.reason, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["loc"] == ("body",) and "json" not in request.headers.get("content-type", "json"):
            return said(422, "body: expected JSON, sent with the header content-type: application/json")
        where = " ".join(str(part) for part in first["loc"] if part != "__root__")[:100]
        return said(422, f"{where}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        reasons = {
            404: "there is nothing at this address; /docs lists what there is",
            405: f"method {request.method} is not for this address",
        }
        return said(error.status_code, reasons.get(error.status_code, str(error.detail)), error.headers)
