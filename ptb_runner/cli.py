"""The entry point: overrides run a cell, a verb works on a folder.

Exit codes: 0 all trials scored; 1 some trial unscored or a required check failed; 2 bad configuration or
usage, nothing launched; 130 interrupted, cleaned up.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from ptb_runner import config as configs
from ptb_runner import explain, keys, menu
from ptb_runner.cell import new_folder
from ptb_runner.explain import Exit, UsageError
from ptb_runner.overrides import as_meant
from ptb_runner.paths import CONF
from ptb_runner.terminal import print_error

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    _interrupt_on_signals()
    sys.path.insert(0, str(Path.cwd()))  # an agent of one's own is found in the folder one stands in
    try:
        keys.load_env_file()
        return _dispatch(argv)
    except UsageError as error:
        return print_error(str(error))
    except KeyboardInterrupt:
        return Exit.interrupted
    except SystemExit as stop:  # argparse and our own callback
        return stop.code if isinstance(stop.code, int) else Exit.usage if stop.code else Exit.ok
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `ptb --help | head`
        return Exit.ok
    except OSError as error:
        log.exception("the command failed")
        where = f"{error.filename}: " if error.filename else ""
        print_error(f"{where}{error.strerror or error}")
        return Exit.unscored


def _interrupt_on_signals() -> None:
    """SIGTERM, and the end of the terminal, are like Ctrl-C, also before any trial runs; nohup stays what it is."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler)


def _dispatch(argv: list[str]) -> int:
    from ptb_runner import help, verbs

    if argv and argv[0] in verbs.VERBS:
        return verbs.VERBS[argv[0]](argv[1:])
    if "--help" in argv or "-h" in argv:
        help.print_help(argv, conf_dirs(argv))
        return Exit.ok
    if "--version" in argv:
        help.print_version()
        return Exit.ok
    if "--dry-run" in argv:
        raise UsageError("--dry-run: no such flag\n  type dry_run=true")
    if argv and re.fullmatch(r"[\w-]+", argv[0]) and not argv[0].startswith("-"):
        if argv[0] in menu.groups(conf_dirs(argv)):
            choices = ", ".join(menu.choices(argv[0], conf_dirs(argv)))
            raise UsageError(f"{argv[0]}: which one?\n  type {argv[0]}=CHOICE, one of: {choices}")
        guess = explain.nearest(argv[0], verbs.VERBS)
        hint = f"did you mean `ptb {guess}`?" if guess else f"the verbs are: {', '.join(verbs.VERBS)}"
        raise UsageError(f"there is no verb {argv[0]!r}\n  {hint}")
    return _hydra(argv)


def conf_dirs(argv: list[str]) -> list[str]:
    """The folders in which configuration is looked for: the user's own (--config-dir) first, then ours."""
    own = []
    for index, argument in enumerate(argv):
        name, _, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            own.append(value or (argv[index + 1] if index + 1 < len(argv) else ""))
    for folder in own:
        if not Path(folder).is_dir():
            raise UsageError(f"--config-dir {folder}: no such folder\n  it holds groups, such as benchmark/mine.yaml")
    return [*own, str(CONF)]


# --- Hydra --------------------------------------------------------------------------------------------


def _one_voice(argv: list[str]) -> None:
    """Refuse a choice that a parity file makes too: its settings are laid over the choice, which would be lost."""
    named = {argument.lstrip("+").partition("=")[0]: argument for argument in argv if "=" in argument}
    for group in ("budget", "content", "pins") if "parity" in named else ():
        if group in named:
            raise UsageError(
                f"{named[group]}: {named['parity'].lstrip('+')} sets {group}, too\n"
                f"  type the options of {group} instead: `ptb --help {group}` lists them"
            )


def _hydra(argv: list[str]) -> int:
    """Let Hydra compose the configuration and call `_start`; its errors become one or two lines."""
    import hydra

    folders = conf_dirs(argv)
    _one_voice(argv)
    configs.register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let exceptions through: we word them
    codes: list[int] = []
    BeforeRun.folders = folders
    program = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    sys.argv = ["ptb", *(as_meant(argument) for argument in argv)]
    try:
        program(lambda config: codes.append(_start(config)))()
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(explain.explain(error, folders)) from error
    except ValueError as error:
        # Hydra's own words about its flags; any other ValueError is ours to mend and not the user's.
        if not _raised_by_hydra(error):
            raise
        raise UsageError(str(error).splitlines()[0]) from error
    except yaml.MarkedYAMLError as error:
        raise UsageError(f"not readable as YAML: {error.problem}\n{error.problem_mark}") from error
    return codes[0] if codes else Exit.ok


def _raised_by_hydra(error: ValueError) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return "/hydra/" in frames[-1].filename


class BeforeRun(Callback):
    """Checks a run before Hydra creates its folder, and gives it a folder of its own."""

    folders: list[str] = [str(CONF)]

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Refuse what cannot work (exit code 2, nothing created); Hydra would swallow any other exception."""
        try:
            self._check(config)
        except Exception as error:
            # Hydra turns it into a warning and would run on, unchecked.
            raise SystemExit(print_error(f"cannot check the run: {type(error).__name__}: {error}")) from error
        chosen = any(text.startswith("hydra.run.dir=") for text in config.hydra.overrides.hydra)
        wanted = Path(config.hydra.run.dir)
        try:
            if chosen:
                wanted.mkdir(parents=True, exist_ok=True)
            else:
                with read_write(config):
                    config.hydra.run.dir = str(new_folder(wanted))
        except OSError as error:
            fault = f"{wanted}: the run's folder cannot be made: {error.strerror}\n  choose one with hydra.run.dir=DIR"
            raise SystemExit(print_error(fault)) from error

    def _check(self, config: DictConfig) -> None:
        from ptb_runner import plan

        own = config.copy()
        with read_write(own), open_dict(own):
            own.pop("hydra")
        faults = plan.faults(own, self.folders)
        if own.sweep.zip or own.sweep.file:
            faults = [*faults, "sweep.zip and sweep.file: for sweeps only\n  type -m"]
        for fault in faults:
            print_error(fault)
        if faults:
            raise SystemExit(Exit.usage)


def _start(config: DictConfig) -> int:
    from ptb_runner import single

    hydra = HydraConfig.get()
    # Unresolved: secrets stay ${oc.env:NAME}.
    overrides: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    return single.start(config, Path(hydra.runtime.output_dir), overrides)
