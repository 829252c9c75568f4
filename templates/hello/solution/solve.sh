#!/usr/bin/env bash
set -eu
printf 'ok' > answer.txt
