"""Reports, plans and baselines as JSON, and back."""
