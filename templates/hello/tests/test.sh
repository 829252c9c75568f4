#!/usr/bin/env bash
# Reward 1 when answer.txt holds exactly `ok` (a line end is allowed), else 0. A link does not count.
set -eu
reward=0
if [ -f answer.txt ] && [ ! -L answer.txt ] && [ "$(head -c 16 answer.txt)" = ok ]; then
  reward=1
fi
printf '%s\n' "$reward" > /logs/verifier/reward.txt
