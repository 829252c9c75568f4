#!/usr/bin/env bash
# -I: neither PYTHON* variables nor the current folder can put other code in place of the verifier's.
exec python3 -I /tests/verify.py "$@"
