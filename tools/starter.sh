#!/bin/sh
# Builds the process starter: FOLDER/<machine>/process-starter, for this machine and for those that
# a cross compiler is here for.
#
#   [CC=...] [STARTER_FLAGS=...] tools/starter.sh FOLDER
set -eu
folder=$1
source=$(dirname "$0")/../starter/process_starter.c

build() {
    mkdir -p "$folder/$1"
    # shellcheck disable=SC2086 # flags are words
    "$2" -std=c11 -Wall -Wextra -Werror -pedantic ${STARTER_FLAGS:--Os -s -static} \
        -o "$folder/$1/process-starter" "$source"
}

native=$("${CC:-cc}" -dumpmachine)
native=${native%%-*}
build "$native" "${CC:-cc}"
for machine in x86_64 aarch64; do
    if [ "$machine" != "$native" ] && command -v "$machine-linux-gnu-gcc" >/dev/null; then
        build "$machine" "$machine-linux-gnu-gcc"
    fi
done
