import pytest
import torch

from contrasent.model.backbones.base import (
    FULL_FP32,
    matrix_precision,
    resolve_precision,
    torch_precisions,
)

pytestmark = pytest.mark.precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("capabilities", "chosen"),
    [
        ({"avx512_bf16": True}, "bf16"),
        ({"amx_bf16": True}, "bf16"),
        ({"avx512_f": True, "avx512_bf16": False}, "fp32"),
        ({}, "fp32"),
    ],
)
def test_auto_is_bf16_where_a_cpu_multiplies_it(capabilities, chosen, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    assert torch_precisions(CPU)[0] == chosen


def test_a_lowered_onednn_counts(monkeypatch):
    """As ``ONEDNN_MAX_CPU_ISA=AVX2`` makes it, with which .ci/run runs these tests again."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert torch_precisions(CPU) == ("fp32", "bf16")


@pytest.mark.parametrize(
    ("available", "chosen"), [(("bf16", "fp32"), "fp32"), (("fp32",), "fp32"), (("int8",), "int8")]
)
def test_auto_is_fp32_before_a_fitted_map_where_that_is_computed(available, chosen):
    assert resolve_precision("auto", available, "the engine", amplified=True) == chosen


def test_the_context_decides_the_products():
    a = torch.ones(2, 2)
    with matrix_precision("bf16", CPU):
        assert (a @ a).dtype == torch.bfloat16
        with matrix_precision("fp32", CPU):
            assert (a @ a).dtype == torch.float32
    assert (a @ a).dtype == torch.float32


@pytest.fixture
def products():
    """The process's setting for fp32 products, put back afterwards."""
    yield torch.backends.cuda.matmul
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("loose", ["high", "medium"])
def test_fp32_is_fp32_whatever_the_process_allows(loose, device, products):
    torch.set_float32_matmul_precision(loose)
    with matrix_precision("fp32", device):
        assert torch.get_float32_matmul_precision() == "highest"
        assert not products.allow_tf32
    assert torch.get_float32_matmul_precision() == loose
    with matrix_precision("bf16", CPU):
        assert torch.get_float32_matmul_precision() == loose


def test_fp32_is_fp32_where_the_process_used_the_newer_name(products):
    if not hasattr(products, "fp32_precision"):
        pytest.skip("this torch has no other name")
    products.fp32_precision = "tf32"
    with matrix_precision("fp32", CPU):
        assert products.fp32_precision == "ieee"
    assert products.fp32_precision == "tf32"


@pytest.mark.usefixtures("products")
def test_the_last_that_leaves_puts_the_setting_back():
    torch.set_float32_matmul_precision("high")
    one, other = matrix_precision("fp32", CPU), matrix_precision("fp32", CPU)
    with FULL_FP32:
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "highest"
        other.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "high"
    with pytest.raises(RuntimeError, match="within"), matrix_precision("fp32", CPU):
        raise RuntimeError("within")
    assert torch.get_float32_matmul_precision() == "high"
