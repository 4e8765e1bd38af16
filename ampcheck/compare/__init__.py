"""Reports held against others: baselines, differences, merges, and which findings count."""
