#!/bin/sh
# Builds the virtual environment of make test-codegen, named by the first argument: the CUDA build of PyTorch and its Triton, apart from
# the ordinary environment, which needs none of their libraries. No GPU and no driver is needed. Variable: PYTHON.
# Exit 3: the packages are not to be had here; make test-codegen then says so and is skipped.
set -eu

venv=${1:?usage: tools/setup_codegen.sh VENV}
python=${PYTHON:-python3}

unavailable() {
    printf 'setup_codegen: %s\n' "$*" >&2
    exit 3
}

[ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$venv" ||
    unavailable "$python cannot make a virtual environment"

pip() {
    "$venv/bin/python" -m pip install --quiet "$@"
}
# One resolution, so that no package replaces another's PyTorch. Triton's interpreter needs numpy below 2.4; Inductor builds its
# launchers with setuptools.
echo 'setup_codegen: installing PyTorch (CUDA build), Triton, torchvision and transformers (about 3 GB)'
pip 'torch==2.11.0' torchvision 'transformers>=5,<6' 'numpy==2.2.*' 'setuptools>=77' 'hypothesis>=6.100,<7' \
    'msgspec>=0.19,<1' 'pytest>=8.2,<10' 'pytest-timeout>=2.3,<3' 'psutil>=5.9,<8' || unavailable 'the packages cannot be installed here'
"$venv/bin/python" -c 'import torch, triton; assert torch.version.cuda, torch.__version__' ||
    unavailable 'the PyTorch that was installed is no CUDA build, or Triton is missing'
