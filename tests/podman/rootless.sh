#!/usr/bin/env bash
# rootless.sh USER COMMAND...: run a command as another user, in a mount namespace of its own in which that user can
# reach this interpreter also when it lies in root's home. Nothing outside changes.
set -euo pipefail
user=$1
shift
python=$(dirname "$(dirname "$(readlink -f "${PTB_PYTHON:-$(command -v python3)}")")")
if [[ $python == /root/* ]]; then
    seen=$(mktemp -d)
    mount --bind "$python" "$seen"
    mount -t tmpfs -o mode=755 tmpfs /root
    mkdir -p "$python"
    mount --bind "$seen" "$python"
fi
mount --make-rshared /
home=$(getent passwd "$user" | cut -d: -f6)
cd "$home"
exec setpriv --reuid "$user" --regid "$user" --init-groups --reset-env \
    env HOME="$home" PATH="$PATH" PYTHONPATH="${PYTHONPATH:-}" PYTHONDONTWRITEBYTECODE=1 HARBOR_TELEMETRY=0 "$@"
