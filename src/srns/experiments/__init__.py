"""Experiments: one file a table or figure of the paper; what makes its runs, and no more, in another (`_runs`)."""
