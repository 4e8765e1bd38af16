"""Watching a training script that knows nothing of it: its events, its recorded steps, its loss scale."""
