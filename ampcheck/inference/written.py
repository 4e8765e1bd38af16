"""A plan for inference in the user's words: the lines to paste, and the lists that libraries keep."""

from collections.abc import Mapping

from ampcheck.fix.patch import SKETCH
from ampcheck.values.formats import HALF_DTYPES
from ampcheck.values.plan import Plan


def lines_to_paste(plan: Plan) -> str:
    """Return the code that runs a model as a plan says, '' where there is nothing to say."""
    kept = plan.fp32_modules or plan.keep_inputs or plan.fp32_lines
    if plan.precision == "fp32" or not (kept or plan.keep_state):
        return ""
    dtype = f"torch.{HALF_DTYPES[plan.precision]}"
    shown = (
        [] if not kept else _of_weights(plan, dtype) if plan.cast == "weights" else _of_autocast(plan, dtype)
    )
    shown += _of_state(plan, dtype) if plan.keep_state else []
    shown += [f"# compute in float32: {line}" for line in plan.fp32_lines]
    return "\n".join([f"{SKETCH}import torch", *shown]) + "\n"


def _of_weights(plan: Plan, dtype: str) -> list[str]:
    inputs = ", ".join(plan.keep_inputs)
    shown = [f"# do not cast these inputs: {inputs}"] if inputs else []
    if not plan.fp32_modules:
        return [*shown, f"model.to({dtype})"]
    back = plan.outputs == "cast-back"
    rule = "their results are cast back" if back else "their results stay in FP32 and promote what follows"
    run = "forward(*args, **kwargs)"
    return [
        "import copy",
        "from torch.utils._pytree import tree_map",
        "",
        *shown,
        f"names = {list(plan.fp32_modules)!r}",
        "kept = {name: copy.deepcopy(model.get_submodule(name)) for name in names}",
        f"model.to({dtype})",
        "",
        *_wrapper(f"  # {rule}", [f"return tree_map(to({dtype}), {run})" if back else f"return {run}"]),
        "for name, module in kept.items():",
        "    module.forward = in_fp32(module.forward)",
        "    model.set_submodule(name, module)",
    ]


def _of_state(plan: Plan, dtype: str) -> list[str]:
    called = f"model(state.to({dtype}), ...)" if plan.cast == "weights" else "model(state, ...)"
    return [
        "# what is carried from call to call stays in FP32:",
        "state = state.float()  # before the loop",
        f"result = {called}.float()  # at each call, before the state is updated by it",
    ]


def _wrapper(rule: str, run: list[str]) -> list[str]:
    """Return the function that lets a forward compute in FP32."""
    return [
        "def to(dtype):",
        "    return lambda t: t.to(dtype) if torch.is_tensor(t) and t.is_floating_point() else t",
        "",
        f"def in_fp32(forward):{rule}",
        "    def wrapped(*args, **kwargs):",
        "        args, kwargs = tree_map(to(torch.float32), (args, kwargs))",
        *(f"        {line}" for line in run),
        "    return wrapped",
        "",
    ]


def _of_autocast(plan: Plan, dtype: str) -> list[str]:
    return [
        "from torch.utils._pytree import tree_map",
        "",
        *_wrapper("", ['with torch.autocast("cuda", enabled=False):', "    return forward(*args, **kwargs)"]),
        f"for name in {list(plan.fp32_modules)!r}:",
        "    module = model.get_submodule(name)",
        "    module.forward = in_fp32(module.forward)",
        "",
        f'with torch.no_grad(), torch.autocast("cuda", dtype={dtype}):',
        "    output = model(inputs)",
    ]


def library_words(plan: Plan, library: str, kinds: Mapping[str, str]) -> tuple[str, ...]:
    """Return how a library's own list would say it: transformers' or diffusers'; nothing for other models.

    `kinds` gives the class of each module by its name.
    """
    if not plan.fp32_modules or plan.cast != "weights":
        return ()
    names = list(plan.fp32_modules)
    if library == "diffusers":
        decoder = any("decoder" in name or "Decoder" in kinds.get(name, "") for name in names)
        shown = (
            f"diffusers: _keep_in_fp32_modules = {names!r}, which from_pretrained(torch_dtype=...) honours"
        )
        return (
            (shown, "or pipe.vae.to(torch.float32), which config.force_upcast does") if decoder else (shown,)
        )
    if library != "transformers":
        return ()
    strict = "" if plan.precision == "fp16" else "_strict"
    shown = f"transformers: _keep_in_fp32_modules{strict} = {names!r}"
    return (f"{shown}; only from_pretrained(dtype=...) honours it, .half() and .to() cast everything",)
