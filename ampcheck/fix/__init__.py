"""From findings to a plan: every change is tried by running the step again."""
