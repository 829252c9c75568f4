#!/usr/bin/env bash
# Starts commands in a container for the runner outside: `bash serve.sh NAME`, in the folder that the two share.
#
# Each line read from the FIFO `NAME` is the name of a script beside it, and is run at once. Scripts and this program
# answer through the FIFO `replies`. When the runner is gone the FIFO ends, and so does this program; as process 1
# of the container it takes everything in it along. bash, as process 1, also reaps what others leave behind.

# Job control: otherwise what is started in the background would ignore Ctrl-C.
set -m
box=$(dirname -- "$0")
exec <"$box/$1" 2>/dev/null
echo "ready $1 $EUID" >"$box/replies"
while IFS= read -r script; do
    # This very bash, whatever has become of the one in the image.
    PTB_JOB=$script /proc/self/exe "$box/$script" &
    disown
done
