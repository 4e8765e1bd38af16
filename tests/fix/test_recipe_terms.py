"""A recipe plan in the words of libraries, run by the real ones."""

from importlib import import_module

import pytest
import torch
from torch import nn

import ampcheck.fix.apply_plan  # noqa: F401  # lets plans be applied
from ampcheck.errors import ReportError
from ampcheck.fix.recipe_terms import lines_to_paste, megatron_yaml, terms
from ampcheck.values.plan import Plan
from ampcheck.values.recipes import RECIPES, recipe

AO = ["ao-tensorwise", "ao-rowwise", "ao-rowwise-gw-hp"]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 32))


@pytest.mark.parametrize("name", AO)
@pytest.mark.parametrize("gemms", [(), ("wgrad",), ("dgrad", "wgrad")])
def test_torchao_takes_the_lines(name, gemms):
    float8 = import_module("torchao.float8.float8_linear")
    model = net()
    exec(terms(recipe(name), ["3"], gemms)["torchao"], {"model": model})
    kinds = {path: isinstance(module, float8.Float8Linear) for path, module in model.named_modules()}
    assert (kinds["0"], kinds["2"], kinds["3"]) == (True, True, bool(gemms))
    if gemms == ("wgrad",):
        config = model[3].config
        assert config.cast_config_input_for_grad_weight.scaling_type.value == "disabled"
        assert config.cast_config_input.scaling_type.value == "dynamic"


def test_a_gemm_that_stays_in_bf16_there_is_the_one_that_stays_here():
    """torchao's layer without a rounded wgrad gives the very gradients of the plan's emulation."""
    from dataclasses import replace

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.config import CastConfig, ScalingType

    from ampcheck.observe.fp8.emulate import Emulation, Kept, emulated

    off = CastConfig(scaling_type=ScalingType.DISABLED)
    theirs, mine = (nn.Sequential(nn.Linear(32, 64, bias=False)).bfloat16() for _ in range(2))
    mine.load_state_dict(theirs.state_dict())
    config = replace(Float8LinearConfig.from_recipe_name("rowwise"), emulate=True)
    config = replace(
        config, cast_config_input_for_grad_weight=off, cast_config_grad_output_for_grad_weight=off
    )
    convert_to_float8_training(theirs, config=config)
    x = torch.randn(48, 32).bfloat16()
    theirs(x).float().square().sum().backward()
    kept = Kept(gemms_of=frozenset({("0", "wgrad")}))
    with (
        emulated(mine, "cpu", Emulation(recipe("ao-rowwise"), kept)),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        y = mine(x)
    y.float().square().sum().backward()
    assert torch.equal(mine[0].weight.grad, theirs[0].weight.grad)


@pytest.mark.parametrize("name", AO)
def test_accelerate_takes_the_lines(name):
    accelerate = import_module("accelerate")
    ao = import_module("accelerate.utils.ao")
    text = terms(recipe(name), ["3"])["Accelerate"]
    seen = {}

    class Accelerator:
        """Takes the arguments and converts as the real one does, which wants a GPU."""

        def __init__(self, mixed_precision, kwargs_handlers):
            assert mixed_precision == "fp8"
            seen["handler"] = kwargs_handlers[0]

    model = net()
    exec(text.replace("from accelerate import Accelerator\n", ""), {"Accelerator": Accelerator})
    handler = seen["handler"]
    assert isinstance(handler, accelerate.utils.AORecipeKwargs)
    ao.convert_model_to_fp8_ao(model, handler.config, handler.module_filter_func)
    assert [type(module).__name__ for module in model] == ["Float8Linear", "ReLU", "Float8Linear", "Linear"]


def test_lightning_takes_the_lines():
    lightning = import_module("lightning.pytorch")
    scope = {}
    exec(
        terms(recipe("ao-rowwise"), ["net.3"])[
            'Lightning (in the LightningModule; Trainer(precision="bf16-true"))'
        ],
        scope,
    )

    class Module(lightning.LightningModule):
        configure_model = scope["configure_model"]

        def __init__(self):
            super().__init__()
            self.net = net()

    module = Module()
    module.configure_model()
    assert [type(layer).__name__ for layer in module.net] == [
        "Float8Linear",
        "ReLU",
        "Float8Linear",
        "Linear",
    ]


def test_megatrons_file_is_yaml_that_matches_the_modules():
    yaml = import_module("yaml")
    import fnmatch

    read = yaml.safe_load(megatron_yaml(["decoder.layers.1.mlp.linear_fc2", "output_layer"]))
    assert read["configs"]["bf16"]["transformer_engine_config_type"] == "TEQuantizationParams"
    matchers = list(read["matchers"].values())
    assert all(
        matcher["config"] == "bf16" and matcher["type"] == "glob" and matcher["enabled"]
        for matcher in matchers
    )
    for name in ("model.decoder.layers.1.mlp.linear_fc2", "output_layer"):
        assert any(fnmatch.fnmatchcase(name, matcher["pattern"]) for matcher in matchers)


@pytest.mark.parametrize("name", sorted(RECIPES))
@pytest.mark.parametrize("modules", [(), ("layers.0.mlp", "layers.1.mlp"), ("head",)])
def test_every_recipe_has_text_that_python_reads(name, modules):
    for library, text in terms(recipe(name), modules).items():
        if library != "Megatron-LM":
            compile(text, library, "exec")
        if library != "NeMo":  # which has no names, only first and last blocks
            assert all(module in text for module in modules), library
    assert bool(lines_to_paste(recipe(name), modules)) == (name != "deepseek-v3")


def test_bounds_only_where_whole_first_blocks_are_kept():
    first = terms(recipe("te-mxfp8"), ["layers.0.mlp", "layers.1.mlp"])
    assert "num_layers_at_start_in_bf16=2" in first["NeMo"]
    assert "--num-layers-at-start-in-bf16 2" in first["Megatron-LM"]
    assert "num_layers" not in terms(recipe("te-mxfp8"), ["layers.1.mlp"])["NeMo"]
    assert "first-last" not in terms(recipe("te-delayed"), ["layers.0.mlp"])["Megatron-LM"]
    delayed = terms(recipe("te-delayed:most_recent,history=1"), [])
    assert 'amax_compute_algo="most_recent"' in delayed["Accelerate"]
    assert "--fp8-amax-history-len 1" in delayed["Megatron-LM"]


@pytest.mark.parametrize(
    ("plan", "kinds"),
    [
        (Plan("bf16", recipe="ao-rowwise"), "FFF"),
        (Plan("bf16", recipe="ao-rowwise", bf16_modules=("3",)), "FF-"),
        (Plan("bf16", recipe="ao-rowwise", bf16_modules=("3",), bf16_gemms=("wgrad",)), "FFP"),
        (Plan("bf16", recipe="ao-tensorwise", bf16_gemms=("dgrad", "wgrad")), "PPP"),
    ],
)
def test_a_plan_converts_a_model(plan, kinds):
    model = plan.apply(net())
    found = ""
    for layer in (model[0], model[2], model[3]):
        if type(layer).__name__ == "Linear":
            found += "-"
            continue
        partly = layer.config.cast_config_input_for_grad_weight.scaling_type.value == "disabled"
        found += "P" if partly else "F"
    assert found == kinds


def test_a_plan_of_another_library_says_what_to_do():
    with pytest.raises(ReportError, match="--save-patch"):
        Plan("bf16", recipe="te-mxfp8").apply(net())
    plan = Plan("bf16", recipe="te-mxfp8", bf16_modules=("a",), bf16_gemms=("wgrad",))
    assert Plan.from_json(plan.to_json()) == plan
