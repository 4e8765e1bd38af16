"""The values that travel: formats, statistics, traces, loops, findings, plans and reports. Standard library only."""
