#!/usr/bin/env bash
# Prints how much of the time budget is left. The start is written once, outside this folder, just before the agent
# starts: asking again, or from another folder, never gives time back.
set -euo pipefail

START_FILE=/timer_start
BUDGET_FILE=/opt/ptb/budget_sec

read_seconds() { # FILE: its whole number of seconds
    local value=""
    if [[ -r $1 ]]; then read -r value <"$1" || true; fi
    if ! [[ $value =~ ^([0-9]{1,15})(\.[0-9]*)?$ ]]; then
        echo "timer.sh: $1 is missing or holds no number of seconds" >&2
        return 1
    fi
    echo "$((10#${BASH_REMATCH[1]}))" # base 10, also with leading zeros
}

in_words() { # SECONDS: the two largest units, such as "9 h 58 min" or "45 s"
    local hours=$(($1 / 3600)) minutes=$(($1 / 60 % 60)) seconds=$(($1 % 60)) words
    if ((hours)); then
        words="$hours h"
        if ((minutes)); then words+=" $minutes min"; fi
    elif ((minutes)); then
        words="$minutes min"
        if ((seconds)); then words+=" $seconds s"; fi
    else
        words="$seconds s"
    fi
    echo "$words"
}

start=$(read_seconds "$START_FILE")
budget=$(read_seconds "$BUDGET_FILE")
printf -v now '%(%s)T' -1 # a builtin: works whatever PATH is
left=$((start + budget - now))

if ((left > 0)); then
    echo "$(in_words "$left") left of $(in_words "$budget")"
else
    echo "time is up: the budget was $(in_words "$budget")"
fi
