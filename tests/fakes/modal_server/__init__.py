"""A Modal of our own on 127.0.0.1, for tests with the real client: `python -m tests.fakes.modal_server --help`.

It plays the three servers that the client talks to: the control plane (gRPC), the command router of a sandbox (gRPC,
same port) and the store of blobs (HTTP, a second port, which also takes orders from tests). A sandbox is a chroot in
namespaces of its own over an overlay of this machine's files, so that commands really run; it needs root.

| module | holds |
|---|---|
| `handle.py` | what a test holds: starts the server, gives orders, asks what is left and what was called |
| `wire.py` | from a class with methods named after calls to a gRPC service: idempotency keys, faults, a journal |
| `faults.py` | which call fails, when, and how |
| `state.py` | everything that the account has |
| `account.py`, `images.py`, `volumes.py`, `sandboxes.py`, `router.py` | the calls, and what they are about |
| `functions.py` | apps that are deployed and calls of their functions, which run the client's own container program |
| `blobs.py` | the HTTP port |
| `root.py`, `fs_tools.py` | the file system of sandboxes, and the client's way to read and write in it |

What it does not do: limit CPU and memory, enforce a network policy beyond none and all, snapshots, tunnels.
"""
