"""A CPU that acts as CUDA does: its autocast, its products of halves, its answers."""
