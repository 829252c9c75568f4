#!/bin/sh
# hf_layer.sh READ_ONLY HOME: a writable home of the model hub's client over repositories that can only be read.
# Every file is a link into them, in folders that are the sandbox's own: what is downloaded later lies beside the
# links, or takes their place, and never reaches the cache that others share.
set -eu
from=$1 hub=$2/hub

mkdir -p "$hub"
for repository in "$from"/*--*; do
    [ -d "$repository" ] || continue
    own=$hub/${repository##*/}
    [ ! -e "$own" ] || continue # it was here before
    mkdir "$own"
    cp -rs "$repository/." "$own/"
    # The client rewrites these, and would follow a link.
    rm -rf "$own/refs"
    [ ! -d "$repository/refs" ] || cp -r "$repository/refs" "$own/refs"
done
find "$2" -type d -exec chmod a+rwx {} +
find "$hub" -path '*/refs/*' -type f -exec chmod a+rw {} +
