"""Targets: what is to be audited, loaded from a file, a package or a model zoo by name.

Importing this package does not load torch; `load` does.
"""

from ampcheck.targets.spec import Options, Target, parse_shape, parse_spec

__all__ = ["Options", "Target", "load", "parse_shape"]


def load(spec: str, options: Options | None = None) -> Target:
    """Return the target that `spec` names, built under a fixed seed and placed on the device.

    The same spec and options give bit-identical weights and batches. Global random state is as before
    afterwards; what the user's file seeds itself wins. Models from a zoo are put in training mode, models
    of the user's own stay in the mode they were built in. Nothing is ever downloaded.
    """
    where = parse_spec(spec)
    from ampcheck.targets.build import build  # loads torch: only once the spec is known to make sense

    return build(where, options or Options())
