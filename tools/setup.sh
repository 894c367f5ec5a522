#!/bin/sh
# Makes the virtual environment that the Makefile's targets run in.
#
#   tools/setup.sh VENV        what cpupool needs to run, also `cpupool demo`
#   tools/setup.sh VENV dev    what its tests need, too
#
# Needs Python 3.11 or newer; everything else comes from the package index, and a C compiler from
# apt-get. Safe to run again.
set -eu

venv=$1
group=${2:-}

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

find_python() {
    for candidate in "${PYTHON3:-python3}" python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

install_packages() {
    say "installing $* with apt-get"
    if [ "$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi
    command -v apt-get >/dev/null && {
        $sudo apt-get install -qq -y "$@" >/dev/null 2>&1 ||
            { $sudo apt-get update -qq >/dev/null && $sudo apt-get install -qq -y "$@" >/dev/null; }
    }
}

# What the process starter is built with, for its tests.
install_compiler() {
    command -v cc >/dev/null || install_packages gcc libc6-dev ||
        say "no C compiler: the process starter's tests are skipped (apt-get install gcc libc6-dev)"
}

python=$(find_python) || { install_packages python3 && python=$(find_python); } ||
    fail "Python 3.11 or newer is needed: install it, or name it with PYTHON3=/path/to/python"

if [ ! -x "$venv/bin/pip" ]; then
    say "making $venv with $("$python" --version)"
    # Debian and Ubuntu keep this part of Python in a package of its own.
    "$python" -c 'import ensurepip' 2>/dev/null || install_packages python3-venv ||
        fail "this Python cannot make virtual environments: apt-get install python3-venv"
    "$python" -m venv --clear "$venv" ||
        fail "$venv cannot be made: see the lines above"
fi

pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input "$@"; }

say "installing cpupool and its libraries into $venv"
pip install --constraint constraints.txt --editable '.[demo]' ||
    fail "the package index could not be reached or refused: see the lines above, then run again"
touch "$venv/.demo"
if [ "$group" = dev ]; then
    say "installing the tools that the tests need"
    install_compiler
    # pip reads dependency groups from 25.1 on; the one of the virtual environment may be older.
    pip install --upgrade 'pip>=25.1'
    pip install --constraint constraints.txt --editable '.[cluster,demo,plot,webhook]' --group dev ||
        fail "the package index could not be reached or refused: see the lines above, then run again"
    touch "$venv/.dev"
fi
say "ready"
