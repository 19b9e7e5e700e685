"""The shapes of requests and answers, as OpenAPI describes them. Answers are made as plain dicts and not checked again."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, create_model, model_validator

from srns.serving.guard import RefusalError
from srns.serving.settings import Limits

Unknown = Literal["raise", "popular"]


def _number(value: Any) -> Any:
    """JSON knows one kind of number, of which 3 and 3.0 are the same."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("expected an integer")
    return value


def _label(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can name and no answer could repeat
            raise ValueError("expected an id of whole characters") from None
        return value
    try:
        return _number(value)
    except ValueError:
        raise ValueError("expected an id, an integer or text") from None


Whole = Annotated[int, BeforeValidator(_number)]
Label = Annotated[int | str, BeforeValidator(_label)]
LABEL = "an id as in the training data"


class Error(BaseModel):
    """What every answer other than 200 has."""

    error: str = Field(description="what is wrong, for people")


class Item(BaseModel):
    item: Label = Field(description=LABEL)
    title: str | None = Field(None, description="where a table of items is given")
    about: str | None = Field(None, description="the other columns of that table")


class Reason(Item):
    share: float = Field(
        description="what this item of the user's own adds to the score of somebody who is folded in with the same items, "
        "which is near `score` but not the same"
    )


class Recommended(Item):
    score: float = Field(description="higher is better; for unknown users the share of all interactions")
    why: list[Reason] | None = Field(None, description="those of the user's items that add most, where asked for")


class Similar(Item):
    similarity: float = Field(description="the cosine of what the model learnt of both")


class Recommendations(BaseModel):
    user: Label | None = Field(description="null for an anonymous one")
    items: list[Recommended] = Field(description="best first")
    unknown: bool = Field(False, description="whether these are the most popular items, since the model does not know the user")


class Answers(BaseModel):
    recommendations: list[Recommendations] = Field(description="in the order of the question")


class SimilarItems(Item):
    similar: list[Similar] = Field(description="nearest first")


class History(BaseModel):
    user: Label
    total: int = Field(description="how many there are")
    order: Literal["time", "popularity"] = Field(description="the latest first, or the most popular where times are not known")
    items: list[Item]


class Users(BaseModel):
    users: list[Label]
    more: bool = Field(description="whether there are more than were asked for")


class User(BaseModel):
    user: Label


class Health(BaseModel):
    status: Literal["ok"]
    run: str = Field(description="name of the folder")
    model: str = Field(description="changes with the model; also the header x-model of answers")
    loaded_at: str
    stale: bool = Field(description="whether a newer run could not be loaded; the log says why")
    users: int
    items: int
    explains: bool = Field(description="whether the model gives reasons")
    compares: bool = Field(description="whether the model knows similar items")
    titles: bool
    version: str = Field(description="of srns")
    limits: dict[str, int] = Field(description="what a request may ask for, by the names of srns.serving.Limits")


def asked(limits: Limits) -> dict[str, Any]:
    """What all ways of asking have in common: defaults, which are within the limits, bounds and meanings."""
    return {
        "k": Field(min(10, limits.k), ge=1, le=limits.k, description="length of a list"),
        "why": Field(0, ge=0, le=limits.why, description="reasons for each item: those of the user's own that add most to it"),
        "exclude_seen": Field(True, description="leave out what the user already had"),
        "unknown": Field("raise", description="what unknown users get: 404, or the most popular items"),
    }


def query(name: str, **fields: Any) -> Any:
    """The model of a query; other parameters are refused, since they are misspelt."""
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def check_length(limits: Limits, users: int, k: int, why: int) -> None:
    """Refuse an answer that would be too long, which no limit on one of its sides does."""
    if (length := users * k * (1 + why)) > limits.listed:
        raise RefusalError(422, f"users x k x (1 + why) is {length:,}; the limit is {limits.listed:,}")


class Batch(BaseModel):
    """A question for several known users, or for one who is not known and touched `items`."""

    model_config = ConfigDict(extra="forbid")

    users: list[Label] = Field([], min_length=1, description="ids of users; users x k x (1 + why) has a limit, too")
    items: list[Label] = Field([], min_length=1, description="ids of items somebody touched")
    k: Whole
    why: Whole
    exclude_seen: StrictBool
    exclude: list[Label] = Field([], description="items to leave out")
    candidates: list[Label] = Field([], min_length=1, description="items to choose from; all, where it is not given")
    unknown: Unknown

    @model_validator(mode="after")
    def _one_of_both(self) -> Batch:
        if bool(self.users) == bool(self.items):
            raise ValueError("expected either users or items")
        return self


def question(limits: Limits) -> type[Batch]:
    """A batch with a service's defaults and limits in its fields, and so in OpenAPI."""
    fields: dict[str, Any] = {}
    for name, most in {"users": limits.batch, **dict.fromkeys(("items", "exclude", "candidates"), limits.items)}.items():
        fields[name] = (Annotated[list[Label], Field(max_length=most)], Batch.model_fields[name])
    for name, field in asked(limits).items():
        base = Batch.model_fields[name]
        parts: Any = (base.annotation, *field.metadata, *base.metadata)
        kind: Any = Annotated[parts] if base.metadata else base.annotation
        fields[name] = (kind, Field(field.default, description=field.description))

    class Limited(Batch):
        model_config = ConfigDict(
            json_schema_extra={
                "oneOf": [{"required": ["users"]}, {"required": ["items"]}],
                "if": {"properties": {"why": {"minimum": 1}}, "required": ["why"]},
                "then": {"properties": {"users": {"maxItems": limits.explained}}},
            }
        )

        @model_validator(mode="after")
        def _few_with_reasons(self) -> Limited:
            if self.why and len(self.users) > limits.explained:
                raise ValueError(f"reasons for {len(self.users)} users; at most {limits.explained} in one request")
            return self

    return create_model("Question", __base__=Limited, __doc__=Batch.__doc__, **fields)
