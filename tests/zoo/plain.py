"""Runs a script by plain torch with CUDA autocast's lists of casts, on a CPU and without ampcheck.

python tests/zoo/plain.py [--fp32] [--seed N] SCRIPT

The lists are those of torch's manual ("Autocast Op Reference"). They are put in place of those that autocast has for
a CPU, and what a script asks of "cuda" is asked of the CPU. `--fp32` runs the same script without any half precision,
`--seed` moves each seed that the script sets.
"""

import argparse
import random
import runpy
import sys
import warnings
import weakref

import torch

LOW = """_convolution convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
conv_transpose3d.input prelu addmm addmv addr matmul mm mv linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
linalg_vecdot einsum lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention"""
FP32 = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Tensor
pow.Tensor_Scalar pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm
nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss
kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d
upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa upsample_nearest1d.vec upsample_nearest2d.vec
upsample_nearest3d.vec upsample_linear1d.vec upsample_bilinear2d.vec upsample_bicubic2d.vec upsample_trilinear3d.vec
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dtype norm.ScalarOpt_dim_dtype"""
WIDEST = (
    """addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add cat stack"""
)
#: What autocast casts on a CPU and not on a card.
LEFT = """avg_pool3d binary_cross_entropy grid_sampler_2d _grid_sampler_2d_cpu_fallback grid_sampler_3d polar quantile
quantile.scalar nanquantile nanquantile.scalar stft trace view_as_complex cholesky cholesky_inverse cholesky_solve
inverse lu_solve orgqr ormqr pinverse max_pool3d max_unpool2d max_unpool3d adaptive_avg_pool3d reflection_pad1d
reflection_pad2d replication_pad1d replication_pad2d replication_pad3d mse_loss.out multilabel_margin_loss.out
fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn
fft_hfft fft_ihfft linalg_cond linalg_matrix_rank linalg_solve linalg_cholesky linalg_svdvals linalg_eigvals
linalg_eigvalsh linalg_inv linalg_householder_product linalg_tensorinv linalg_tensorsolve
fake_quantize_per_tensor_affine geqrf _lu_with_info qr svd triangular_solve
linalg_cholesky_ex linalg_qr linalg_eig linalg_eigh linalg_lstsq linalg_inv_ex"""

copies = {}


def cast(value, dtype):
    """Return a value, or all in a list, in a precision; a trained weight is cast once in a region."""
    if isinstance(value, (list, tuple)):
        return type(value)(cast(one, dtype) for one in value)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype is torch.float64:
        return value
    if value.dtype is dtype:
        return value
    kept = (
        value.is_leaf
        and value.requires_grad
        and dtype is not torch.float32
        and torch.is_autocast_cache_enabled()
        and torch.is_grad_enabled()  # what is cast without gradients has none to give later
    )
    if not kept:
        return value.to(dtype)
    if id(value) not in copies or copies[id(value)][0]() is not value:
        copies[id(value)] = (weakref.ref(value), value.to(dtype))
    return copies[id(value)][1]


def floats(values):
    """Return the precisions of all floating tensors in a list."""
    flat = torch.utils._pytree.tree_leaves(values)
    return [one.dtype for one in flat if isinstance(one, torch.Tensor) and one.is_floating_point()]


def register(library, name, choose):
    """Cast the arguments of an operation to what `choose` says of them."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    if packet is None or (overload or "default") not in packet.overloads():
        return
    op = getattr(packet, overload or "default")
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def kernel(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(key):
            dtype = choose(args, kwargs)
            if dtype is None:
                return op(*args, **kwargs)
            return op(*(cast(arg, dtype) for arg in args), **{k: cast(v, dtype) for k, v in kwargs.items()})

    library.impl(op, kernel, "AutocastCPU")


def widest(args, kwargs):
    """Return the widest precision among the arguments."""
    found = floats((args, kwargs))
    if len(set(found)) < 2:
        return None
    if torch.float64 in found:
        return torch.float64
    return torch.float32 if torch.float32 in found else torch.get_autocast_dtype("cpu")


def as_cuda():
    """Put CUDA's lists in the place of the CPU's."""
    library = torch.library.Library("aten", "IMPL")
    for name in LEFT.split():
        register(library, name, lambda args, kwargs: None)
    for name in LOW.split():
        register(library, name, lambda args, kwargs: torch.get_autocast_dtype("cpu"))
    for name in FP32.split():
        register(library, name, lambda args, kwargs: torch.float32)
    for name in WIDEST.split():
        register(library, name, widest)
    return library


def ask_the_cpu(fp32):
    """Give a CPU what a script asks of "cuda"."""
    inner, clear, scaler = torch.autocast.__init__, torch.clear_autocast_cache, torch.amp.GradScaler.__init__

    def init(self, device_type="cuda", dtype=None, enabled=True, cache_enabled=None):
        dtype = (
            torch.bfloat16 if fp32 else dtype or (torch.float16 if device_type == "cuda" else torch.bfloat16)
        )
        inner(self, "cpu", dtype=dtype, enabled=enabled and not fp32, cache_enabled=cache_enabled)

    def clear_all():  # which the outermost region does when it ends
        copies.clear()
        clear()

    def scaler_init(self, device="cuda", *args, **kwargs):
        scaler(self, "cpu", *args, **kwargs)

    torch.autocast.__init__, torch.clear_autocast_cache = init, clear_all
    torch.amp.GradScaler.__init__ = scaler_init
    torch.cuda.amp.autocast.__init__ = lambda self, enabled=True, dtype=torch.float16, cache_enabled=True: (
        init(self, "cuda", dtype, enabled, cache_enabled)
    )
    torch.cuda.amp.GradScaler.__init__ = lambda self, *args, **kwargs: scaler_init(
        self, "cuda", *args, **kwargs
    )
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        asked = getattr(torch, name)
        setattr(
            torch,
            name,
            lambda first="cuda", *rest, asked=asked: asked("cpu" if first == "cuda" else first, *rest),
        )


def without_half():
    """Make FP32 of each half precision that a script names."""
    torch.storage._dtype_to_storage_type_map()  # which are kept, for `torch.save`
    torch.storage._storage_type_to_dtype_map()
    torch.float16 = torch.half = torch.bfloat16 = torch.float32
    for owner in (torch.Tensor, torch.nn.Module):
        owner.half = owner.bfloat16 = owner.float
    unscale = torch.amp.GradScaler._unscale_grads_  # which would take FP32 for the FP16 that it refuses
    torch.amp.GradScaler._unscale_grads_ = lambda self, optimizer, inverse, found, _: unscale(
        self, optimizer, inverse, found, True
    )


def move_seeds(by):
    """Add to each seed that a script sets."""
    seed, python, generator = torch.manual_seed, random.seed, torch.Generator.manual_seed
    torch.manual_seed = lambda value: seed(value + 1000 * by)
    random.seed = lambda value=0, *rest: python(value + 1000 * by if isinstance(value, int) else value, *rest)

    class Generator(torch.Generator):
        def manual_seed(self, value):
            return generator(self, value + 1000 * by)

    torch.Generator = Generator
    try:
        import numpy as np
    except ImportError:
        return
    np_seed, rng = np.random.seed, np.random.default_rng
    np.random.seed = lambda value=0: np_seed(value + 1000 * by)
    np.random.default_rng = lambda value=0: rng(value + 1000 * by if isinstance(value, int) else value)


def main():
    """Run the script that was named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("script")
    options, rest = parser.parse_known_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    library = None if options.fp32 else as_cuda()
    ask_the_cpu(options.fp32)
    if options.fp32:
        without_half()
    if options.seed:
        move_seeds(options.seed)
    sys.argv = [options.script, *rest]
    runpy.run_path(options.script, run_name="__main__")
    del library


if __name__ == "__main__":
    main()
