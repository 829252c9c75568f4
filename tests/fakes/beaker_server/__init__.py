"""A Beaker of our own on 127.0.0.1, for tests with the real client: `python -m tests.fakes.beaker_server --help`.

It plays what beaker-py talks to: gRPC over TLS with a certificate made for the occasion, and HTTP for experiments,
secrets and the files of datasets (that port also takes orders from tests). A submitted job really runs: its command in
namespaces of its own, over an overlay of this machine's files, with its datasets, weka buckets and results mounted
where the spec says, and with podman usable in it; that needs root.

| module | holds |
|---|---|
| `handle.py` | what a test holds: starts the server, gives orders, asks what became of jobs and what was called |
| `state.py` | everything the account has: datasets, secrets, experiments, groups |
| `jobs.py` | jobs from the queue to their end: logs, preemption, cancelling, retries, time limits, results |
| `node.py` | the machine that a job finds itself on |
| `rpc.py`, `web.py` | the calls, by gRPC and by HTTP |

Workspaces, clusters, budgets, images and users exist unless their name contains "missing"; a job's root is this
machine's, unless a test has named another folder for its image. What it does not do: GPUs, limits on CPU and memory,
permissions, sessions.
"""
