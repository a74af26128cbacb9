#!/bin/sh
# Builds the virtual environment named by the first argument. Variables: PYTHON, TORCH, TORCH_INDEX; see the Makefile.
set -eu

venv=${1:?usage: tools/setup.sh VENV}
python=${PYTHON:-python3}
torch=${TORCH:-torch}

die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 || die "there is no $python; install Python 3.11 or later, or say make PYTHON=/path/to/it setup"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$("$python" --version) is too old; 3.11 or later is needed: make PYTHON=/path/to/it setup"

# Debian and Ubuntu ship python3 without ensurepip, which a virtual environment needs.
if ! "$python" -c 'import ensurepip' >/dev/null 2>&1; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "setup: installing python$version-venv"
        export DEBIAN_FRONTEND=noninteractive
        apt-get install -y -q "python$version-venv" >/dev/null 2>&1 ||
            { apt-get update -q >/dev/null && apt-get install -y -q "python$version-venv" >/dev/null; } ||
            { apt-get install -y -q python3-venv >/dev/null; } ||
            die "could not install python$version-venv"
    else
        die "$python cannot make virtual environments; ask for: apt-get install python$version-venv"
    fi
fi

[ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$venv"

quiet=--quiet
[ -t 1 ] && quiet= # a terminal gets pip's progress bars
pip() {
    "$venv/bin/python" -m pip install $quiet --no-compile "$@"
}
# pip works on one core. What it has installed is compiled on another one meanwhile; a file that it has only begun to write is
# seen to have changed by whoever imports it, and compiled again.
compile() {
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$venv/bin/python" -m compileall -qq "$@" "$site" || true # packages bring templates that are no Python yet
}
echo 'setup: installing tidewright and its test tools'
pip --editable '.[nvidia,report,dev]'
compile &

# PyTorch is for the examples and the tests of real processes only; the package itself needs none.
install_torch() {
    if [ -n "${TORCH_INDEX:-}" ]; then
        pip --index-url "$TORCH_INDEX" "$1"
    else
        pip "$1"
    fi
}
if ! "$venv/bin/python" -c 'import torch' >/dev/null 2>&1; then
    echo "setup: installing $torch (the largest download)"
    install_torch "$torch" || { echo "setup: no $torch here; trying the newest" && install_torch torch; }
fi
wait
compile &
# After PyTorch, so that none of these brings another one.
if ! "$venv/bin/python" -c 'import accelerate, distributed, ipykernel, lightning, sklearn, tensorboard, transformers, zmq' >/dev/null 2>&1; then
    echo 'setup: installing what the example programs use'
    pip --editable '.[examples]' ||
        echo 'setup: not all of it; the tests of those programs are skipped' >&2
fi
wait
compile -j 0
"$venv/bin/tide" --version >/dev/null || die "$venv/bin/tide does not start"

# Full images of jobs need CRIU. Everything else works without it, so a machine that cannot have it is no failure.
"$venv/bin/tide" setup criu || echo 'setup: no CRIU; jobs can be frozen, but not moved or saved (see docs/checkpoints.md)' >&2
echo "setup: ready; $venv/bin/tide --help shows what there is"
