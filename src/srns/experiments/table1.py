"""Table 1: what each sampler costs, measured, beside the paper's complexity column."""

from __future__ import annotations

from srns.experiments import sampler_costs
from srns.experiments.outcome import Asked, Check, Outcome, Table
from srns.experiments.store import Found, Job
from srns.experiments.table1_runs import Cell, measurable, measure
from srns.samplers import SAMPLERS

TITLE = "Table 1: time per positive of each sampler"
MOST_EPOCHS = 0  # nothing is trained to its end
QUICK_SAMPLERS = ("uniform", "srns", "aobpr", "advir", "irgan")


def jobs(asked: Asked, found: Found) -> list[Job]:
    names = QUICK_SAMPLERS if asked.quick else tuple(SAMPLERS)
    return [Job.of(measure, f"cost of {name}", sampler=name) for name in names if measurable(name)]


def outcome(asked: Asked, found: Found) -> Outcome:
    cells = [Cell(*cell) for job in jobs(asked, found) for cell in found[job]["cells"]]
    summary = sampler_costs.summary(cells)
    powers = {row["sampler"]: row for row in summary}
    checks = []
    if "irgan" in powers:
        grows, srns = (powers[name]["power_of_items"] for name in ("irgan", "srns"))
        claim = "IRGAN's cost grows with the catalogue, that of SRNS much less"
        detail = f"|I|^{grows:.2f} and |I|^{srns:.2f}"
        checks.append(Check(claim, grows > 2 * srns, detail, about_training=False))  # a quick look measures them no less
    return Outcome(
        tables=[Table(TITLE, *sampler_costs.table(summary, formulas=True))],
        figures={"table1": sampler_costs.plot(cells)},
        checks=checks,
        notes=[
            "Samplers were measured side by side where --jobs allows it, and a busy machine shows: "
            "srns bench samplers measures them one by one."
        ],
        data={row["sampler"]: row for row in summary},
    )
