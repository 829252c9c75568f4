#!/usr/bin/env bash
# docker: podman and podman-compose under Docker's name, as far as Harbor's docker environment asks for them.
set -euo pipefail
if [ "${1:-}" != compose ]; then exec podman "$@"; fi
shift
if [ "${1:-}" = version ]; then
    echo "Docker Compose version v2.30.0"
    exit
fi
options=()
while [[ ${1:-} == -* ]]; do
    if [ "$1" = --project-directory ]; then cd "$2"; else options+=("$1" "$2"); fi
    if [ "$1" = --project-name ]; then project=$2; fi
    shift 2
done
place() { # SERVICE:PATH as CONTAINER:PATH
    if [[ $1 == *:* ]]; then
        container=$(podman ps -q --filter "label=com.docker.compose.project=$project" \
            --filter "label=com.docker.compose.service=${1%%:*}")
        echo "$container:${1#*:}"
    else
        echo "$1"
    fi
}
case $1 in
up) exec podman-compose --in-pod=false "${options[@]}" up --detach ;;
cp) exec podman cp "$(place "$2")" "$(place "$3")" ;;
*) exec podman-compose --in-pod=false "${options[@]}" "$@" ;;
esac
