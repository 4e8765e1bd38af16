"""Where modules lie: what a path says of the modules around one."""


def within(path: str, module: str) -> bool:
    """Tell whether a path is that of a module, or of a part of it.

    >>> within("encoder.attn", "encoder"), within("encoder", "encoder"), within("encoders", "encoder")
    (True, True, False)
    """
    return f"{path}.".startswith(f"{module}.")


def above(path: str) -> list[str]:
    """Return the modules but the root that hold one, the outermost first.

    >>> above("encoder.layers.0")
    ['encoder', 'encoder.layers']
    """
    parts = path.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]
