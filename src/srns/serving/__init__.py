"""After the recommender: a trained model over HTTP. `make_app` is the ASGI application, `srns serve` runs it with uvicorn.

settings    what is served and the limits that protect it, every default in one place
titles      a table of items, for people who know them by name
listing     items as they are sent, and JSON
state       the model in use, replaced while requests run
answers     from a model and a question to what is sent, without HTTP
messages    the shapes of requests and answers, for OpenAPI
metrics     Prometheus
guard       sizes, time limits, request ids, log lines, one shape of error
quick       routes that cost less
app         the routes
documents   the page for people, and the description of the interface as a page
protocol    what uvicorn leaves open: slow and endless headers
server      sockets, signals, workers
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from srns.serving.settings import Limits, Settings

if TYPE_CHECKING:
    from srns.serving.app import make_app

__all__ = ["Limits", "Settings", "make_app"]


def __getattr__(name: str) -> Any:
    if name != "make_app":
        raise AttributeError(f"module 'srns.serving' has no attribute {name!r}")
    from srns.serving.settings import require

    require()
    from srns.serving.app import make_app

    return make_app
