"""The stages: each has `jobs`, which yields the rows to be found in order of worth."""
