"""Experiments: one file a table or figure of the paper."""
