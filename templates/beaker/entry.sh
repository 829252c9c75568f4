#!/usr/bin/env bash
# What a Beaker job of ptb_runner runs first: installs what the image lacks and the program, then hands over to
# ptb_runner/launch/beaker_job.py. As process 1 it also reaps what containers leave, and passes SIGTERM on.
set -euo pipefail

code=${PTB_CODE:-/ptb/code}
home=${PTB_HOME:-/opt/ptb-runner}
child=""

fail() {
    printf '%s\n  %s\n' "$1" "$2" >&2
    exit 1
}

# Before the program runs there is nothing to save: the job ends. Afterwards the program ends it.
trap 'if [ -n "$child" ]; then kill -TERM "$child" || true; else exit 143; fi' TERM INT

# In the background, so that a signal is heard at once and not at its end.
quietly() {
    "$@" > /tmp/ptb-entry.log 2>&1 &
    wait $!
}

lacks() { ! command -v "$1" > /dev/null; }

# The end of what the last program said, in a line.
said() { tail -n 3 /tmp/ptb-entry.log | tr '\n' ' '; }

install_packages() {
    local wanted=()
    if lacks podman; then wanted+=(podman uidmap fuse-overlayfs); fi
    if lacks crun; then wanted+=(crun); fi
    if lacks git; then wanted+=(git); fi
    if lacks uv && ! python3 -c 'import ensurepip' 2> /dev/null; then wanted+=(python3-venv); fi
    if [ ${#wanted[@]} = 0 ]; then return; fi
    if lacks apt-get || [ "$(id -u)" != 0 ]; then
        fail "the job's image lacks ${wanted[*]}, and they cannot be installed in it" \
            "launcher.image: name one that has them, or one of Debian or Ubuntu that runs as root"
    fi
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update -qq || true # a source that does not answer may not be needed
    if lacks podman; then # newer ones do not start without these, older systems do not have them
        for one in netavark aardvark-dns; do
            if apt-cache show "$one" > /dev/null 2>&1; then wanted+=("$one"); fi
        done
    fi
    echo "installing ${wanted[*]}"
    quietly apt-get install -y -qq --no-install-recommends ca-certificates "${wanted[@]}" ||
        fail "apt-get cannot install ${wanted[*]}: $(said)" \
            "launcher.image: name an image that has them, or mend its package sources"
}

install_uv() {
    if ! lacks uv; then return; fi
    echo "installing uv"
    local advice="launcher.image: name an image that has uv"
    quietly python3 -m venv "$home/uv" || fail "no virtual environment can be made: $(said)" "$advice"
    quietly "$home/uv/bin/pip" install --quiet uv || fail "uv cannot be installed: $(said)" "$advice"
    export PATH="$home/uv/bin:$PATH" # vLLM is started through uvx
}

no_program() {
    fail "the program cannot be installed: $(said)" \
        "does the job reach the package index? launcher.env can name another one, such as UV_DEFAULT_INDEX"
}

install_wheel() {
    quietly uv venv --quiet --python 3.12 "$home/venv" || no_program
    quietly uv pip install --quiet --python "$home/venv/bin/python" -r "$code/requirements.txt" "$code"/*.whl ||
        no_program
}

install_commit() {
    git init --quiet "$home/source"
    cd "$home/source"
    quietly git fetch --quiet --depth 1 "$PTB_GIT_URL" "$PTB_GIT_COMMIT" ||
        fail "$PTB_GIT_URL: commit $PTB_GIT_COMMIT cannot be fetched: $(said)" \
            "is it pushed, and may the job read the repository? Or type launcher.code=wheel"
    git checkout --quiet FETCH_HEAD
    UV_PROJECT_ENVIRONMENT="$home/venv" quietly uv sync --quiet --frozen --no-dev --extra modal --extra podman || no_program
    cd /
}

install_packages
install_uv
echo "installing ptb_runner"
if [ -n "${PTB_GIT_COMMIT:-}" ]; then install_commit; else install_wheel; fi

PYTHONSAFEPATH=1 HARBOR_TELEMETRY=0 PATH="$home/venv/bin:$PATH" \
    "$home/venv/bin/python" -m ptb_runner.launch.beaker_job &
child=$!
while kill -0 "$child" 2> /dev/null; do wait "$child" || true; done
wait "$child"
