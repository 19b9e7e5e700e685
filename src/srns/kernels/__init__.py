"""Compiled hot paths of the fused engine and of evaluation; each has a readable twin elsewhere that it must equal."""
