"""torch.nn.MultiheadAttention as softmax attention, against torch with a causal mask."""

import numpy as np
import pytest

import underhood as uh

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_multihead_attention(heads, bias):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(6, heads, bias=bias, batch_first=True, dtype=torch.float64)
    if bias:
        with torch.no_grad():
            module.in_proj_bias.normal_()
            module.out_proj.bias.normal_()
    xs = torch.randn(1, 20, 6, dtype=torch.float64)
    mask = torch.triu(torch.ones(20, 20, dtype=torch.bool), 1)
    with torch.no_grad():
        expected = module(xs, xs, xs, attn_mask=mask, need_weights=False)[0][0].numpy()
    model = uh.from_torch(module)
    assert isinstance(model, uh.SoftmaxAttention) and model.heads == heads
    assert np.max(np.abs(model(xs[0].numpy()) - expected)) < 1e-13


def test_other_sizes_of_keys_are_refused():
    with pytest.raises(uh.UnderhoodError, match="in_proj_weight"):
        uh.from_torch(torch.nn.MultiheadAttention(6, 2, kdim=4))
