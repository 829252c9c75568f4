"""What each judge of a cell is asked: written into the cell's folder when it is prepared, and read from there."""

from __future__ import annotations

from pathlib import Path

from ptb_runner import upstream
from ptb_runner.config import Config, ContentKind, JudgeConfig
from ptb_runner.explain import UsageError
from ptb_runner.judge.judgements import PROMPTS
from ptb_runner.paths import TEMPLATES
from ptb_runner.render import filled


def file_of(own: JudgeConfig) -> Path:
    """The file of a judge's prompt: a path as seen from here, else a file of templates/judge/."""
    given = Path(own.prompt).expanduser()
    return given.resolve() if given.is_file() else TEMPLATES / "judge" / own.prompt


def write(config: Config, folder: Path, task: Path) -> None:
    """Write the prompts of a cell's judges into its folder; `task` is the rendered task.

    Raises UsageError when a prompt is not there or asks for something that the configuration does not have.
    """
    texts = {judge: _text(config, judge, task) for judge in config.judge.panel}
    for path in (folder / PROMPTS).glob("*.md"):
        if path.stem not in texts:
            path.unlink()
    for judge, text in texts.items():
        (folder / PROMPTS).mkdir(exist_ok=True)
        (folder / PROMPTS / f"{judge}.md").write_text(text)


def read(folder: Path, judge: str) -> str:
    """A judge's prompt as the cell's folder has it."""
    return (folder / PROMPTS / f"{judge}.md").read_text()


def _text(config: Config, judge: str, task: Path) -> str:
    if config.content.kind is ContentKind.upstream and (theirs := upstream.judge_prompt(config, task, judge)):
        return theirs
    path = file_of(config.judge.panel[judge])
    if not path.is_file():
        raise UsageError(f"judge.panel.{judge}.prompt={config.judge.panel[judge].prompt}: no such file")
    return filled(path, config) if path.suffix == ".j2" else path.read_text()
