#!/usr/bin/env bash
# The first process of a container: what agent and verifier write to their logs appears on its output, each line with
# the file's name before it. With arguments it runs them as a command and ends as they do; without, it waits to be ended.
set -uo pipefail

LOGS=${PTB_LOGS:-/logs}
LOOK_EVERY=${PTB_LOOK_EVERY:-1} # seconds between looks for new files

declare -A shown

show_new_files() {
    local file
    for file in "$LOGS"/agent/*.txt "$LOGS"/agent/*.log "$LOGS"/verifier/*.txt "$LOGS"/verifier/*.log; do
        if [[ -f $file && ! -v shown[$file] ]]; then
            shown[$file]=1
            # -F: a log that is emptied or replaced is followed on.
            { tail -n +1 -F "$file" 2>/dev/null | sed -u "s|^|${file#"$LOGS"/}: |"; } &
        fi
    done
}

start_monitor() {
    local monitor=/opt/ptb/system_monitor.py # only the agent's image has it
    if [[ -f $monitor ]]; then
        mkdir -p "$LOGS/agent"
        python3 -I "$monitor" --log "$LOGS/agent/system_monitor.log" --disk "$PWD" >/dev/null 2>&1 &
    fi
}

end() { # CODE: end the helpers, but only those: what else runs here is the agent's
    trap - TERM INT
    local helper
    for helper in $(jobs -p); do
        [[ $helper == "${command:-}" ]] || pkill -TERM -P "$helper" 2>/dev/null
        kill -TERM "$helper" 2>/dev/null
    done
    exit "$1"
}

trap 'end 143' TERM INT
start_monitor
command=""
if (($#)); then
    "$@" &
    command=$!
fi
while true; do
    show_new_files
    if [[ -n $command ]] && ! kill -0 "$command" 2>/dev/null; then
        wait "$command"
        code=$?
        sleep 0.2 # what was written last is still to be shown
        end "$code"
    fi
    sleep "$LOOK_EVERY" &
    wait $! # unlike sleep itself, it is interrupted by a signal at once
done
