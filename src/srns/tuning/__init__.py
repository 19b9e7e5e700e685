"""Searching settings on validation data, after training and evaluation in the pipeline: what `srns tune` does.

`space` says what may vary, `trial` trains one configuration, `tpe` chooses the next with Optuna, `grid` as the paper does,
`finish` trains the winner and the default recipe and compares them on test data, which nothing before it looks at.
"""

from srns.tuning.plans import Asked
from srns.tuning.tuner import tune

__all__ = ["Asked", "tune"]
