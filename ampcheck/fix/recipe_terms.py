"""A recipe plan in the words of the libraries that train with it: text to paste, one section for each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ampcheck.values.recipes import History, Recipe

AO_NAMES = {"ao-tensorwise": "tensorwise", "ao-rowwise": "rowwise", "ao-rowwise-gw-hp": "rowwise_with_gw_hp"}
_MX = "ao-mxfp8"
_MEGATRON = {
    "te-delayed": "delayed",
    "te-current": "tensorwise",
    "te-current-e4m3": "tensorwise",
    "te-block": "blockwise",
    "te-mxfp8": "mxfp8",
}
_TE_RECIPES = {
    "te-current": "Float8CurrentScaling()",
    "te-current-e4m3": "Float8CurrentScaling(fp8_format=Format.E4M3)",
    "te-block": "Float8BlockScaling()",
    "te-mxfp8": "MXFP8BlockScaling()",
    "te-nvfp4": "NVFP4BlockScaling()",
}
#: The casts of torchao's configuration that have to be off for a GEMM to stay in bf16.
AO_CASTS = {
    "fprop": ("cast_config_input", "cast_config_weight"),
    "dgrad": ("cast_config_grad_output", "cast_config_weight_for_grad_input"),
    "wgrad": ("cast_config_input_for_grad_weight", "cast_config_grad_output_for_grad_weight"),
}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be written."""

    recipe: Recipe
    modules: Sequence[str]
    gemms: Sequence[str]

    @property
    def base(self) -> str:
        return self.recipe.name.partition(":")[0]


def terms(recipe: Recipe, modules: Sequence[str] = (), gemms: Sequence[str] = ()) -> dict[str, str]:
    """Return the plan in every library's own words that has the recipe."""
    wanted = _Wanted(recipe, modules, gemms)
    if wanted.base in AO_NAMES:
        return dict(_torchao(wanted))
    if wanted.base == _MX:
        return {"torchtitan": _torchtitan_mx(wanted)}
    if wanted.base.startswith("te-"):
        return dict(_transformer_engine(wanted))
    return {}


def lines_to_paste(recipe: Recipe, modules: Sequence[str] = (), gemms: Sequence[str] = ()) -> str:
    """Return all sections as one text."""
    sections = terms(recipe, modules, gemms)
    return "\n".join(f"# {name}\n{text}" for name, text in sections.items())


def _torchao(wanted: _Wanted) -> Iterator[tuple[str, str]]:
    kept = sorted(wanted.modules)
    name = AO_NAMES[wanted.base]
    convert = [
        "from torchao.float8 import Float8LinearConfig, convert_to_float8_training",
        *_ao_filter(kept),
        f'config = Float8LinearConfig.from_recipe_name("{name}")',
        "convert_to_float8_training(model, config=config, module_filter_fn=in_fp8)",
    ]
    yield "torchao", "\n".join([*convert, *(_ao_gemms(wanted) if wanted.gemms else ())]) + "\n"
    if name != "tensorwise":  # which torchtitan does not have
        titan = f'Float8LinearConverter.Config(recipe_name="{name}", filter_fqns={kept!r})\n'
        yield "torchtitan (each entry matches as a part of a name)", titan
    accelerate = [
        "from accelerate import Accelerator",
        "from accelerate.utils import AORecipeKwargs",
        "from torchao.float8 import Float8LinearConfig",
        *_ao_filter(kept),
        f'config = Float8LinearConfig.from_recipe_name("{name}")',
        'accelerator = Accelerator(mixed_precision="fp8",',
        "    kwargs_handlers=[AORecipeKwargs(config=config, module_filter_func=in_fp8)])",
    ]
    yield "Accelerate", "\n".join(accelerate) + "\n"
    lightning = ["def configure_model(self):", "    model = self", *(f"    {line}" for line in convert)]
    yield 'Lightning (in the LightningModule; Trainer(precision="bf16-true"))', "\n".join(lightning) + "\n"


def _ao_filter(kept: Sequence[str]) -> list[str]:
    return [
        f"kept_in_bf16 = {set(kept)!r}" if kept else "kept_in_bf16 = set()",
        "def in_fp8(module, name):",
        "    return name not in kept_in_bf16",
    ]


def _ao_gemms(wanted: _Wanted) -> list[str]:
    """Return the second conversion: of the layers that keep only some GEMMs in bf16."""
    casts = [cast for gemm in wanted.gemms for cast in AO_CASTS[gemm]]
    which = "module_filter_fn=lambda module, name: name in kept_in_bf16" if wanted.modules else ""
    return [
        "# the kept layers need no more than this in bf16:",
        "from dataclasses import replace",
        "from torchao.float8.config import CastConfig, ScalingType",
        "def off(cast):",
        "    return CastConfig(scaling_type=ScalingType.DISABLED, target_dtype=cast.target_dtype)",
        f"partly = replace(config, {', '.join(f'{cast}=off(config.{cast})' for cast in casts)})",
        f"convert_to_float8_training(model, config=partly, {which})",
    ]


def _torchtitan_mx(wanted: _Wanted) -> str:
    kept = ", ".join(sorted(wanted.modules)) or "nothing"
    return (
        "# fqns is an include list: name every layer but those kept in bf16\n"
        f"# kept in bf16: {kept}\n"
        'MXFP8LinearConverter.Config(recipe_name="mxfp8_rceil", fqns=[...])\n'
    )


def _transformer_engine(wanted: _Wanted) -> Iterator[tuple[str, str]]:
    yield "TransformerEngine", _te_region(wanted)
    yield "Megatron-LM", _megatron(wanted)
    if wanted.base == "te-delayed":
        arguments = f'fp8_format="HYBRID", {_delayed(wanted.recipe.history)}'
        note = "# has no list of exceptions: build these as nn.Linear: " + ", ".join(wanted.modules) + "\n"
        yield (
            "Accelerate",
            (note if wanted.modules else "")
            + 'accelerator = Accelerator(mixed_precision="fp8", '
            + f"kwargs_handlers=[TERecipeKwargs({arguments})])\n",
        )
        kept = ", ".join(wanted.modules) or "none"
        plugin = (
            f"weights_dtype=torch.bfloat16, recipe={_te_recipe(wanted)}, replace_layers={not wanted.modules}"
        )
        yield "Lightning", f"# te.Linear for every layer but: {kept}\nTransformerEnginePrecision({plugin})\n"
    if wanted.base in _MEGATRON:
        arguments = f'precision="bf16-mixed", fp8="{_format(wanted)}", fp8_recipe="{_MEGATRON[wanted.base]}"'
        yield "NeMo", f"MegatronMixedPrecision({arguments}{_first_and_last(wanted.modules, ', ', '=')})\n"


def _te_recipe(wanted: _Wanted) -> str:
    if wanted.base != "te-delayed":
        return _TE_RECIPES[wanted.base]
    return f"DelayedScaling({_delayed(wanted.recipe.history)})"


def _delayed(history: History) -> str:
    algorithm = _algorithm(history)
    return f'margin={history.margin}, amax_history_len={history.length}, amax_compute_algo="{algorithm}"'


def _te_region(wanted: _Wanted) -> str:
    lines = [f"with te.autocast(enabled=True, recipe={_te_recipe(wanted)}):", "    ..."]
    for name in sorted(wanted.modules):
        lines += ["    with te.autocast(enabled=False):", f"        ...  # the call of {name}"]
    if wanted.gemms:
        lines.append(f"# of these, only {' and '.join(wanted.gemms)} has to stay in bf16")
    return "\n".join(lines) + "\n"


def _megatron(wanted: _Wanted) -> str:
    if wanted.base == "te-nvfp4":
        lines = ["# --fp4-format e2m1"]
    else:
        lines = [f"# --fp8-format {_format(wanted)} --fp8-recipe {_MEGATRON[wanted.base]}"]
    if wanted.base == "te-delayed":
        history = wanted.recipe.history
        lines[0] += f" --fp8-amax-history-len {history.length} --fp8-amax-compute-algo {_algorithm(history)}"
    bounds = _first_and_last(wanted.modules, " --", " ")
    if bounds and wanted.base != "te-delayed":  # Megatron refuses the two together
        lines.append(f"#{bounds.replace('_', '-').replace(' True', '')}")
    if wanted.modules:
        lines.append("# --te-precision-config-file FILE, with these lines:")
        lines.append(megatron_yaml(wanted.modules))
    return "\n".join(lines).rstrip() + "\n"


def megatron_yaml(modules: Sequence[str]) -> str:
    """Return the file for --te-precision-config-file that keeps modules in bf16."""
    lines = [
        "configs:",
        "  bf16:",
        "    transformer_engine_config_type: TEQuantizationParams",
        "    training_recipe: {}",
        "matchers:",
    ]
    for index, name in enumerate(sorted(modules)):
        lines += [
            f"  keep_{index}:",
            "    config: bf16",
            "    type: glob",
            f'    pattern: "*{name}"',
            "    enabled: true",
        ]
    return "\n".join(lines) + "\n"


def _first_and_last(modules: Sequence[str], before: str, between: str) -> str:
    """Return Megatron's bounds where whole blocks from the first on are kept; '' where others are kept too."""
    numbers = [_block(name) for name in modules]
    if not numbers or None in numbers or 0 not in numbers:
        return ""
    whole = {number for number in numbers if number is not None}
    if whole != set(range(len(whole))):
        return ""
    values: Mapping[str, object] = {
        "first_last_layers_bf16": True,
        "num_layers_at_start_in_bf16": len(whole),
        "num_layers_at_end_in_bf16": 0,
    }
    return "".join(f"{before}{name}{between}{value}" for name, value in values.items())


def _block(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def _format(wanted: _Wanted) -> str:
    grads = wanted.recipe.casts["dgrad", "grad_output"].format
    return "hybrid" if grads == "e5m2" else "e4m3"


def _algorithm(history: History) -> str:
    return "most_recent" if history.most_recent else "max"
