"""The change a person would make by hand: a plan as a unified diff against their file, or as lines to paste."""

import ast
import difflib
from pathlib import Path

from ampcheck.values.formats import HALF_DTYPES
from ampcheck.values.plan import Plan

#: Losses that autocast refuses: their two operands are floats.
_REFUSED = frozenset({"binary_cross_entropy"})


def written(plan: Plan, file: Path | None, kinds: dict[str, str]) -> str:
    """Return the change that a plan asks for: module name -> class name says what to look for in the file.

    A diff changes a class, so it is only offered where no other module is of a class it changes.
    """
    if not plan.fp32_modules and not plan.fp32_lines:
        return ""
    if file is not None and not plan.fp32_modules:
        return _losses_outside(file, plan.fp32_lines) or snippet(plan)
    classes = {kinds[name]: name for name in plan.fp32_modules if name in kinds}
    shared = [name for name, kind in kinds.items() if kind in classes and name not in plan.fp32_modules]
    if file is None or shared or plan.fp32_lines or len(classes) < len(plan.fp32_modules):
        return snippet(plan)
    return diff(file, classes) or snippet(plan)


def snippet(plan: Plan) -> str:
    """Return the training loop of a plan, ready to paste."""
    if plan.precision == "fp32":
        return "# no autocast: train in FP32\n"
    lines = []
    if plan.fp32_modules:
        lines += [
            "def in_fp32(forward):",
            "    def wrapped(*args, **kwargs):",
            '        with torch.autocast("cuda", enabled=False):',
            "            wide = (a.float() if torch.is_tensor(a) and a.is_floating_point() else a for a in args)",
            "            return forward(*wide, **kwargs)",
            "    return wrapped",
            "",
            f"for name in {list(plan.fp32_modules)!r}:",
            "    module = model.get_submodule(name)",
            "    module.forward = in_fp32(module.forward)",
            "",
        ]
    lines += [
        f"# sketch: the operation at {line} outside of autocast, its inputs as .float()"
        for line in plan.fp32_lines
    ]
    if plan.scaler is not None:
        lines.append(_scaler(plan))
    lines.append(f'with torch.autocast("cuda", dtype=torch.{HALF_DTYPES[plan.precision]}):')
    lines.append("    loss = loss_fn(model, batch)")
    lines += (
        ["scaler.scale(loss).backward()", "scaler.step(optimizer)", "scaler.update()"]
        if plan.scaler
        else ["loss.backward()", "optimizer.step()"]
    )
    return "\n".join(lines) + "\n"


def _scaler(plan: Plan) -> str:
    scaler = plan.scaler
    assert scaler is not None
    settings = [f"init_scale={scaler.init_scale:.0f}"]
    if scaler.growth_interval != 2000:  # noqa: PLR2004  # torch's default
        settings.append(f"growth_interval={scaler.growth_interval}")
    return f'scaler = torch.amp.GradScaler("cuda", {", ".join(settings)})'


def diff(file: Path, classes: dict[str, str]) -> str:
    """Return the diff that runs the forward of these classes in FP32: class name -> module name, for the message.

    Classes that the file does not define at its top level are left out; '' where none is defined.
    """
    before = file.read_text(encoding="utf-8").splitlines(keepends=True)
    after = list(before)
    found = [
        node
        for node in ast.parse("".join(before)).body
        if isinstance(node, ast.ClassDef) and node.name in classes
    ]
    for node in reversed(found):
        forward = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "forward"), None)
        if forward is not None:
            _edit(after, forward)
    if after == before:
        return ""
    return "".join(difflib.unified_diff(before, after, f"a/{file.name}", f"b/{file.name}"))


def _losses_outside(file: Path, places: tuple[str, ...]) -> str:
    """Return the diff that takes refused losses out of autocast, not what they are given; '' for other places."""
    from ampcheck.observe.source import shown_path

    try:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (UnicodeDecodeError, SyntaxError):  # in another encoding, or a notebook
        return ""
    name = shown_path(str(file))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and f"{name}:{node.lineno}" in places and node.lineno == node.end_lineno
        if ast.unparse(node.func).rpartition(".")[2] in _REFUSED and len(node.args) == 2  # noqa: PLR2004
    ]
    if {f"{name}:{call.lineno}" for call in calls} != set(places):
        return ""
    before = text.splitlines(keepends=True)
    after = list(before)
    for call in calls:
        wide = [f"{ast.unparse(ast.Attribute(operand, 'float'))}()" for operand in call.args]
        given = ", ".join([*wide, *map(ast.unparse, call.keywords)])
        instead = f'torch.autocast("cuda", enabled=False)({ast.unparse(call.func)})({given})'
        line = call.lineno - 1
        after[line] = after[line].replace(ast.get_source_segment(text, call) or "", instead)
    return "".join(difflib.unified_diff(before, after, f"a/{file.name}", f"b/{file.name}"))


def _edit(lines: list[str], forward: ast.FunctionDef) -> None:
    """Put the decorator above a forward and the conversion of its tensors below its signature."""
    documented = ast.get_docstring(forward) is not None and len(forward.body) > 1
    body = forward.body[1 if documented else 0]
    indent = " " * body.col_offset
    names = [argument.arg for argument in forward.args.args[1:]]
    if body.lineno > forward.lineno and names:
        lines.insert(body.lineno - 1, f"{indent}{_converted(names)}\n")
    first = min([forward.lineno, *(decorator.lineno for decorator in forward.decorator_list)])
    lines.insert(first - 1, " " * forward.col_offset + '@torch.autocast("cuda", enabled=False)\n')


def _converted(names: list[str]) -> str:
    """Return the statement that makes floating-point inputs FP32."""
    if len(names) == 1:
        return f"{names[0]} = {names[0]}.float()"
    every = ", ".join(names)
    return f"{every} = (t.float() if torch.is_tensor(t) and t.is_floating_point() else t for t in ({every}))"
