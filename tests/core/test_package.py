"""The core alone: what it imports, and the names that other code relies on."""

import subprocess
import sys

PROGRAM = """
import sys
import torch
import open_nvib as nv

u, z, log_pi = torch.randn(2, 3, 8), torch.randn(2, 4, 8), torch.zeros(2, 4)
assert nv.attend_impulses(u, z, log_pi, d=8).shape == (2, 3, 8)
assert nv.attend_gaussians(u, z, z, log_pi, d=8).shape == (2, 3, 8)
assert nv.gaussian_kl(z, z).shape == (2, 4)
assert nv.dirichlet_kl(torch.ones(2), torch.ones(2), 5).shape == (2,)
assert nv.dirichlet_kl_exact(torch.ones(2, 4), 1.0, torch.ones(2, 4)).shape == (2,)
assert nv.sample_log_gamma(torch.ones(2, 4), method="paper", generator=None).shape == (2, 4)
assert nv.sample_log_dirichlet(torch.ones(2, 4), method="implicit", generator=None).shape == (2, 4)
layer = nv.NVIB(8)
posterior = layer(torch.randn(2, 4, 8), torch.ones(2, 4, dtype=torch.bool))
assert posterior.alpha.shape == posterior.mask.shape == (2, 5)
assert posterior.mu.shape == posterior.log_sigma.shape == (2, 5, 8)
mixture = posterior.sample(kappa=1, method="paper", generator=None)
assert nv.ImpulseMixture(z=mixture.z, log_pi=mixture.log_pi).z.shape == (2, 5, 8)
mean = posterior.mean()
nv.GaussianMixture(mu=mean.mu, log_sigma=mean.log_sigma, log_alpha=mean.log_alpha)
for form in ("expected", "exact"):
    assert posterior.kl(form=form).dirichlet.shape == posterior.kl(form=form).gaussian.shape == (2,)
assert posterior.kept.shape == (2,)
assert layer.prior.sample(torch.tensor([3, 1]), generator=None).z.shape == (2, 4, 8)
attention = nv.DenoisingAttention(8, 2)
assert attention(u, mixture).shape == attention(u, mean).shape == (2, 3, 8)
heavy = {"transformers", "datasets", "tokenizers", "scipy", "matplotlib", "pandas", "gradio", "ray", "beartype"}
print(sorted(heavy & set(sys.modules)))
"""


def test_the_core_imports_nothing_heavy():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_command_without_its_extra_says_what_to_install(tmp_path):
    """docstring_parser is hidden, as in an installation of the core alone."""
    program = (
        "import sys; sys.modules['docstring_parser'] = None; sys.argv = ['nvib', '--help']\n"
        "from open_nvib.__main__ import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("nvib: docstring_parser is not installed.")
    assert result.stderr.count("\n") == 1
