#!/usr/bin/env bash
# Stands in for an agent's CLI: writes its environment, values as checksums, where the test finds it, and does the work of `hello`.
case "$*" in *--version*) echo "9.9.9" && exit ;; esac
for name in $(compgen -e); do
    echo "$name=$(printf %s "${!name}" | sha256sum)" # what it is, also when the logs are redacted
done >/logs/agent/environ
for login in /installed-agent/codex-home/auth.json "$CODEX_HOME/auth.json"; do
    if [ -e "$login" ]; then cat "$login" >/logs/agent/login.json; fi
done
if [ -n "$PTB_TEST_RENEW" ]; then
    cp --remove-destination "$PTB_TEST_RENEW" "$CODEX_HOME/auth.json"
fi
printf ok >answer.txt
