"""The command line: parse, call, print. Results go to standard output, progress and messages to standard error."""

# Each registers its commands, in the order of --help.
from srns.cli import data, training, updating, tuning, using, serving, reporting, auditing, studying  # isort: skip
from srns.cli.console import app

__all__ = ["app", "auditing", "data", "main", "reporting", "serving", "studying", "training", "tuning", "updating", "using"]


def main() -> None:
    """Entry point of the `srns` command."""
    app()
