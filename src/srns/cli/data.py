"""`srns demo` and `srns datasets`: what there is to begin with."""

from __future__ import annotations

from srns.cli.console import Json, command, err, out, print_json
from srns.display import plain_table


@command("srns demo")
def demo(as_json: Json = False) -> None:
    """Simulate data, train, measure and recommend: the whole pipeline in under a minute."""
    from srns.demo import run_demo

    result = run_demo(out if not as_json else None, err)
    if as_json:
        print_json(result)


@command("srns datasets")
def datasets(as_json: Json = False) -> None:
    """List the data sets known by name: simulated, downloadable, and found in the folder $SRNS_DATA."""
    from srns.datasets import available

    found = available()
    rows = [
        {"name": each.name, "kind": each.kind, "source": str(each.source), "description": each.description} for each in found
    ]
    if as_json:
        print_json({"datasets": rows})
    else:
        out.print(
            plain_table(
                "Data sets",
                ["name", "kind", "description", "source"],
                [[r["name"], r["kind"], r["description"], r["source"]] for r in rows],
            )
        )
