"""This machine and its accounts: ptb doctor, clean, cache."""

from __future__ import annotations

import shlex

from rich.markup import escape
from rich.table import Table

from ptb_runner.explain import UsageError
from ptb_runner.terminal import console
from ptb_runner.verbs.command import parser_of


def doctor(arguments: list[str]) -> int:
    """Check what this machine has for running cells and say how to mend the rest; overrides choose the backend.

    With --fix set a restricted machine up for podman first: what that exports is printed for `eval "$(...)"`.
    """
    from ptb_runner.doctor import checks, fix

    parser = parser_of(doctor, folder=False)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for example backend=bubblewrap")
    parser.add_argument("--fix", action="store_true", help="make what podman lacks here, and print its exports")
    chosen = parser.parse_args(arguments)
    out = console(stderr=chosen.fix)
    exports, found = fix(chosen.overrides) if chosen.fix else ("", checks(chosen.overrides))
    table = Table("check", "state", "what was found, or what to do", title="ptb doctor", title_justify="left")
    failed = False
    for check in found:
        failed |= check.failed
        table.add_row(check.name, "FAIL" if check.failed else "ok", escape(check.text))
    out.print(table)
    if exports:
        print(exports, end="")
        again = shlex.join(["ptb", "doctor", "--fix", *chosen.overrides])
        out.print(f'runs need no more; for podman typed by hand: eval "$({again})"', markup=False)
    return 1 if failed else 0


def clean(arguments: list[str]) -> int:
    """Remove what runners that are gone left behind: sandboxes, scratch folders; with a flag also what was built."""
    from ptb_runner import backend
    from ptb_runner.doctor import compose

    parser = parser_of(clean, folder=False)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for example backend=bubblewrap")
    parser.add_argument("--images", action="store_true", help="also the images built here that nothing uses")
    parser.add_argument(
        "--sweeps", action="store_true", help="also the results on Modal of sweeps whose folder is gone: backend=modal"
    )
    chosen = parser.parse_args(arguments)
    config = compose(chosen.overrides)
    if chosen.sweeps and config.backend.kind != "modal":
        raise UsageError("ptb clean --sweeps: only Modal holds any\n  ptb clean backend=modal --sweeps")
    # An account that cannot be asked may hold sandboxes that cost: that is not "0 leftovers".
    if config.backend.kind == "modal":
        for name, failed, text in backend.of(config).checks(config):
            if failed:
                raise UsageError(text)
            if name == "sweep" and not chosen.sweeps:
                console().print(f"left {text}", markup=False)
    removed = backend.of(config).reap(config)
    removed += backend.of(config).clean_images(config) if chosen.images else []
    removed += _clean_sweeps() if chosen.sweeps else []
    for left in removed:
        console().print(f"removed {left}", markup=False)
    console().print(f"{len(removed)} leftovers removed")
    return 0


def _clean_sweeps() -> list[str]:
    from ptb_runner.launch import modal_sweeps
    from ptb_runner.sandbox import modal_account

    return modal_account.blocking(modal_sweeps.clean)


def cache(arguments: list[str]) -> int:
    """Download what runs can use more than once.

    `hf` fetches the models and data sets that cells need of the hub, `test-data` a benchmark's test items for the
    check against contamination, `codex` the Codex CLI for judge.engine=codex.
    """
    parser = parser_of(cache, folder=False)
    parser.add_argument("what", choices=list(_CACHES), help="models and data sets, test items, or the CLI")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for example benchmark=gsm8k,humaneval")
    chosen = parser.parse_args(arguments)
    return _CACHES[chosen.what](chosen.overrides)


def _cache_test_data(overrides: list[str]) -> int:
    from ptb_runner import test_data
    from ptb_runner.doctor import compose

    path, count = test_data.download(compose(overrides))
    console().print(f"wrote {count} items to {path}", markup=False)
    return 0


def _cache_hf(overrides: list[str]) -> int:
    from ptb_runner import backend, display, hf_cache
    from ptb_runner.doctor import compose_all

    configs = compose_all(overrides)
    if len({config.backend.kind for config in configs}) > 1:
        raise UsageError("ptb cache hf: fills the cache of one backend\n  type the command once for each backend")
    if configs[0].backend.hf_cache is None:
        raise UsageError("backend.hf_cache=null: says that there is no cache\n  leave it out, or name a place")
    out, needed = console(), hf_cache.wanted(configs)
    with display.downloads(configs[0].progress.interval_sec, out) as show:
        place = backend.of(configs[0]).fill_hf_cache(configs[0], needed, show)
    out.print(f"hub cache: {len(needed)} repositories in {place}" if needed else "these cells need nothing of the hub")
    out.print(f"next: ptb {' -m' if len(configs) > 1 else ''}{' '.join(overrides)}".replace("  ", " "), markup=False)
    return 0


def _cache_codex(overrides: list[str]) -> int:
    from ptb_runner.doctor import compose
    from ptb_runner.judge import codex_program

    out = console()
    program = codex_program.install(compose(overrides).judge.codex, lambda line: out.print(line, markup=False))
    out.print(f"codex {program.version} is in {program.folder}", markup=False)
    out.print("next: judge.engine=codex, in a run or in ptb rejudge", markup=False)
    return 0


_CACHES = {"hf": _cache_hf, "test-data": _cache_test_data, "codex": _cache_codex}
