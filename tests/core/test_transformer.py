"""The modules with torch's interface: oracles are torch's own modules over the weights of `eq:probZ`."""

import pytest
import torch
from torch import nn

import open_nvib as nv
from open_nvib.transformer import MixtureAttention, MixtureDecoderLayer

BATCH, QUERIES, N, SIZE, HEADS, P = 3, 5, 7, 12, 4, 10


def plain_mixture(z: torch.Tensor, d: int) -> nv.ImpulseMixture:
    """Weights of `eq:probZ`: with them, denoising attention is ordinary attention."""
    return nv.ImpulseMixture(z=z, log_pi=0.5 * d**-0.5 * z.square().sum(-1))


@pytest.mark.parametrize("kdim", [None, P])
@pytest.mark.parametrize("bias", [True, False])
def test_attention_from_torch_is_that_attention(bias, kdim):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(SIZE, HEADS, bias=bias, kdim=kdim, vdim=kdim, batch_first=True).double()
    if bias:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours = MixtureAttention.from_torch(theirs)
    query, z = torch.randn(BATCH, QUERIES, SIZE).double(), torch.randn(BATCH, N, kdim or SIZE).double()
    expected, weights = theirs(query, z, z)
    mixture = plain_mixture(z, SIZE // HEADS)
    output, shares = ours(query, mixture, mixture)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(shares, weights)
    _, by_head = ours(query, mixture, average_attn_weights=False)
    torch.testing.assert_close(by_head, theirs(query, z, z, average_attn_weights=False)[1])
    assert ours(query, mixture, need_weights=False)[1] is None


@pytest.mark.parametrize("norm_first", [True, False])
def test_decoder_stack_over_a_plain_mixture_is_torch_s(norm_first):
    torch.manual_seed(1)
    theirs = nn.TransformerDecoderLayer(SIZE, HEADS, 16, dropout=0.0, batch_first=True, norm_first=norm_first).double()
    ours = MixtureDecoderLayer(SIZE, HEADS, 16, dropout=0.0, norm_first=norm_first).double()
    ours.load_state_dict({name: x for name, x in theirs.state_dict().items() if "multihead" not in name}, strict=False)
    ours.multihead_attn = MixtureAttention.from_torch(theirs.multihead_attn)
    tgt, z = torch.randn(BATCH, QUERIES, SIZE).double(), torch.randn(BATCH, N, SIZE).double()
    causal = nn.Transformer.generate_square_subsequent_mask(QUERIES, dtype=torch.float64)
    expected = nn.TransformerDecoder(theirs, 2)(tgt, z, tgt_mask=causal)
    output = nn.TransformerDecoder(ours, 2)(tgt, plain_mixture(z, SIZE // HEADS), tgt_mask=causal)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("reading", ["sample", "mean"])
def test_decoder_layer_reads_a_posterior_and_trains(reading):
    torch.manual_seed(2)
    nvib, layer = nv.NVIB(P, input_size=SIZE), MixtureDecoderLayer(SIZE, HEADS, 16, p=P)
    hidden = torch.randn(BATCH, N, SIZE, requires_grad=True)
    mixture = getattr(nvib(hidden), reading)()
    layer(torch.randn(BATCH, QUERIES, SIZE), mixture).square().mean().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()
    assert hidden.grad.abs().sum() > 0


@pytest.mark.parametrize("mask", ["key_padding_mask", "attn_mask"])
def test_a_mask_is_refused_by_name(mask):
    attention, z = MixtureAttention(SIZE, HEADS), torch.randn(BATCH, N, SIZE)
    with pytest.raises(ValueError, match=mask):
        attention(torch.randn(BATCH, QUERIES, SIZE), plain_mixture(z, 3), **{mask: torch.zeros(BATCH, N).bool()})
