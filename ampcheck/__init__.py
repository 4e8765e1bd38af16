"""Finds what mixed precision does to a PyTorch training step."""
