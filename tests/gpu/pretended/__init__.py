"""Stages that go wrong, one way each: what the driver makes of them is tested."""
