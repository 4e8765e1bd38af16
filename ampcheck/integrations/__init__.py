"""Watches for training frameworks: each file is for one, and imports it."""
