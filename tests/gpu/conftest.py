import pytest
import torch


@pytest.fixture
def cuda():
    """The CUDA device; the test is skipped where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.manual_seed(0)
    return torch.device("cuda", torch.cuda.current_device())
