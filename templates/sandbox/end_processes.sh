#!/usr/bin/env bash
# Ends what an agent has left running when it is done, and prints the command line of each but for their children.
# Spared are the container's own helpers, which are in the process group of its first process, the server of our
# commands (serve.sh) where it is another one, and this script with its ancestors. Only bash itself is used, but for
# sleep: the agent may have replaced everything else.
set -uo pipefail

declare -A spared=([1]=1 [$$]=1)
declare -A is_left=()

parent_and_group() { # PID: sets them, and fails when there is no such process any more, or only its zombie
    local line fields
    { IFS= read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
    read -r -a fields <<<"${line##*) }"
    parent=${fields[1]}
    group=${fields[2]}
    [[ ${fields[0]} != [ZX] ]]
}

command_line() { # PID: sets words
    local word
    words=""
    while IFS= read -r -d '' word; do
        words+="${words:+ }$word"
    done 2>/dev/null <"/proc/$1/cmdline"
    words=${words//[$'\n\t\r']/ }
    words=${words:0:300}
}

find_left() { # sets pids to what is to be ended; in no subshell, which would find itself
    local entry pid
    pids=()
    for entry in /proc/[0-9]*; do
        pid=${entry#/proc/}
        if [[ -v spared[$pid] ]] || ! parent_and_group "$pid" || [[ $group == "$first_group" ]]; then
            continue
        fi
        command_line "$pid"
        if [[ $parent != 0 || $words != "bash "*"/serve.sh "* ]]; then
            pids+=("$pid")
        fi
    done
}

parent_and_group 1
first_group=$group
pid=$$
while parent_and_group "$pid" && ((parent > 1)); do
    pid=$parent
    spared[$pid]=1
done

for signal in TERM KILL KILL KILL; do
    find_left
    ending=()
    for pid in "${pids[@]}"; do
        is_left[$pid]=1
    done
    for pid in "${pids[@]}"; do
        command_line "$pid"
        if parent_and_group "$pid" && kill -s "$signal" "$pid" 2>/dev/null; then
            ending+=("$pid")
            if [[ $signal == TERM && ! -v is_left[$parent] ]]; then echo "$words"; fi
        fi
    done
    for _ in {1..20}; do
        running=0
        for pid in "${ending[@]}"; do
            if parent_and_group "$pid"; then running=1; fi
        done
        ((running)) || break
        sleep 0.1
    done
done
