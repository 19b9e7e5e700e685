"""What the package raises when the input, not the program, is at fault.

The command line prints these messages without a stack trace and exits with code 2; every other exception is a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What is expected of a value, by pydantic's name for what is wrong with it.
EXPECTED = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
    "literal_error": "{expected}",
    "string_type": "text",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    # the only field with a pattern is the metric
    "string_pattern_mismatch": "recall, ndcg, hit, mrr, map or precision at a length, such as ndcg@10",
}


class SrnsError(Exception):
    """Base of all errors a user can cause and mend; the message says what was found and what is expected."""


class DataError(SrnsError):
    """A file, frame or array of interactions is not what it should be."""


LEAVE_OUT = "--drop-bad-rows, or a database's query"


class MissingError(DataError):
    """A value is missing; the message names the first."""

    def among(self, counts: Mapping[str, int]) -> DataError:
        """The same with how many values each column lacks, so that all can be mended at once."""
        lacking = ", ".join(f"{count:,} in {column!r}" for column, count in counts.items() if count)
        many = f"; rows without a value: {lacking}" if sum(counts.values()) > 1 else ""
        return DataError(f"{self}{many}; fill it in, or leave such rows out: {LEAVE_OUT}")


class ScoreError(DataError):
    """A score is NaN or +inf, so that items cannot be ranked by it."""


class ConfigError(SrnsError):
    """A hyper-parameter, option or name is unknown or out of range."""


class ArtifactError(SrnsError):
    """A run or model on disk is missing, damaged or of another format version."""


class TrainingError(SrnsError):
    """Training broke down, for instance into numbers that are not finite."""


class UnknownIdError(SrnsError, KeyError):
    """A user or item that the model has never seen was asked for."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0])


def explain(error: Any) -> str:
    """One of pydantic's errors: field, value and what is wrong with it."""
    field = ".".join(str(part) for part in error["loc"])
    expected = EXPECTED.get(error["type"])
    message = f"expected {expected.format(**error.get('ctx', {}))}" if expected else error["msg"].removeprefix("Value error, ")
    return f"{field} = {error['input']!r}: {message}" if field else message
