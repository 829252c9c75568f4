#!/usr/bin/env bash
# Makes the base image of these tests, localhost/ptb-base:bookworm: a small Debian with bash, Python and NumPy. No
# registry is needed, and the files are kept in $PTB_CACHE (default: /var/cache/ptb-tests) for the next time.
set -euo pipefail
image=localhost/ptb-base:bookworm
cache=${PTB_CACHE:-/var/cache/ptb-tests}
archive=$cache/ptb-base-bookworm.tar

if podman image exists "$image"; then exit 0; fi
if [ ! -e "$archive" ]; then
    mkdir -p "$cache"
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    debootstrap --variant=minbase --include=python3-minimal,python3-numpy,ca-certificates,procps bookworm "$folder"
    rm -rf "$folder"/var/cache/apt/* "$folder"/var/lib/apt/lists/*
    tar -C "$folder" -c . >"$archive.new"
    mv "$archive.new" "$archive"
fi
podman import --quiet "$archive" "$image"
