"""The change a person would make by hand: a plan as a unified diff against their file, or as lines to paste."""

import ast
import difflib
from io import StringIO
from pathlib import Path

from ampcheck.values.formats import HALF_DTYPES
from ampcheck.values.plan import Plan

#: Losses that autocast refuses: their two operands are floats.
_REFUSED = frozenset({"binary_cross_entropy"})
#: The first line of what was not run in the form in which it is printed.
SKETCH = "# sketch: not run as it stands\n"
#: Where what names the user's own loss, batch and optimizer begins: nothing below it has been run.
LOOP = "# sketch: your training loop, with your own loss_fn, batch and optimizer"


def written(plan: Plan, file: Path | None, kinds: dict[str, str]) -> tuple[str, ...]:
    """Return the forms of the change that a plan asks for, the better one first; none where it asks for none.

    Module name -> class name says what to look for in the file. A diff changes a class, so it is only offered where no
    other module is of a class it changes.
    """
    if not plan.fp32_modules and not plan.fp32_lines:
        return ()
    if file is not None and not plan.fp32_modules:
        return tuple(form for form in (_losses_outside(file, plan.fp32_lines), snippet(plan)) if form)
    classes = {kinds[name]: name for name in plan.fp32_modules if name in kinds}
    shared = [name for name, kind in kinds.items() if kind in classes and name not in plan.fp32_modules]
    if file is None or shared or plan.fp32_lines or len(classes) < len(plan.fp32_modules):
        return (snippet(plan),)
    return tuple(form for form in (diff(file, classes), snippet(plan)) if form)


def snippet(plan: Plan) -> str:
    """Return what is to be done to a model, and then the training loop of a plan, ready to paste."""
    if plan.precision == "fp32":
        return "# no autocast: train in FP32\n"
    lines = []
    if plan.fp32_modules:
        lines += [
            "import torch",
            "from torch.utils._pytree import tree_map",
            "",
            "def wide(t):",
            f"    return t.float() if {_in_half('t')} else t",
            "",
            "def in_fp32(forward):",
            "    def wrapped(*args, **kwargs):",
            "        args, kwargs = tree_map(wide, (args, kwargs))",
            '        with torch.autocast("cuda", enabled=False):',
            "            return forward(*args, **kwargs)",
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
    lines.append(LOOP)
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
    settings = [f"init_scale={scaler.init_scale:{'.0f' if scaler.init_scale >= 1 else 'g'}}"]
    if scaler.growth_interval != 2000:  # noqa: PLR2004  # torch's default
        settings.append(f"growth_interval={scaler.growth_interval}")
    return f'scaler = torch.amp.GradScaler("cuda", {", ".join(settings)})'


def diff(file: Path, classes: dict[str, str]) -> str:
    """Return the diff that runs the forward of these classes in FP32: class name -> module name, for the message.

    '' where the file does not define each at its top level, with a forward whose inputs all have a name.
    """
    text, tree = _read(file)
    before = StringIO(text).readlines()  # as Python counts lines
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in classes]
    forwards = [
        f for node in found for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "forward"
    ]
    after = list(before)
    editable = all(_edited(after, forward) for forward in reversed(forwards))
    if not editable or not len(forwards) == len(found) == len(classes):
        return ""
    _import_torch(after, tree, _first_line(found[0]))
    made = difflib.unified_diff(before, after, f"a/{file.name}", f"b/{file.name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in made
    )


def _read(file: Path) -> tuple[str, ast.Module]:
    """Return a file's text, and what Python reads in it; nothing where a diff of it would not apply."""
    try:
        held = file.read_bytes()
        text = (
            "" if b"\r" in held else held.decode("utf-8")
        )  # lines that end otherwise are not those of a diff
        return text, ast.parse(text)
    except (OSError, ValueError, SyntaxError):  # in another encoding, or a notebook
        return "", ast.Module([], [])


def _losses_outside(file: Path, places: tuple[str, ...]) -> str:
    """Return the diff that takes refused losses out of autocast, not what they are given; '' for other places."""
    from ampcheck.observe.source import shown_path

    text, tree = _read(file)
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


def _import_torch(lines: list[str], tree: ast.Module, used: int) -> None:
    """Import torch before a line that uses it, beside the file's other imports, where it is not there by its name."""
    above = [
        node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) and node.lineno < used
    ]
    names = [alias for node in above if isinstance(node, ast.Import) for alias in node.names]
    if any(alias.asname is None and alias.name.partition(".")[0] == "torch" for alias in names):
        return
    first = (n for n in above if not (isinstance(n, ast.ImportFrom) and n.module == "__future__"))
    lines.insert(next((node.lineno for node in first), used) - 1, "import torch\n")


def _edited(lines: list[str], forward: ast.FunctionDef) -> bool:
    """Put the decorator above a forward and its inputs' conversion below its signature; tell whether that can be.

    It cannot where inputs have no name of their own, or where the body begins on the signature's line.
    """
    documented = ast.get_docstring(forward) is not None and len(forward.body) > 1
    begins = forward.body[1 if documented else 0]
    body, indent = _first_line(begins) - 1, _indent(lines[_first_line(begins) - 1])
    given = forward.args
    names = [one.arg for one in ([*given.posonlyargs, *given.args][1:] + given.kwonlyargs)]
    if given.vararg or given.kwarg or len(indent) < begins.col_offset:
        return False
    lines[body:body] = [
        text
        for name in names
        for text in (f"{indent}if {_in_half(name)}:\n", f"{indent}    {name} = {name}.float()\n")
    ]
    first = _first_line(forward) - 1
    lines.insert(first, f'{_indent(lines[first])}@torch.autocast("cuda", enabled=False)\n')
    return True


def _first_line(node: ast.stmt) -> int:
    """Return the number of a statement's first line, its decorators' where it has any."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _in_half(name: str) -> str:
    """Return the condition under which running the plan makes a value FP32."""
    return f"torch.is_tensor({name}) and {name}.dtype in (torch.half, torch.bfloat16)"
