"""A configuration on its way: known to Hydra, laid over the schema, typed, and fit to be written to disk."""

from __future__ import annotations

import functools
import json
import os
import re
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, ListConfig, Node, OmegaConf

from ptb_runner.config.backend import BACKENDS
from ptb_runner.config.launcher import LAUNCHERS
from ptb_runner.config.schema import Config
from ptb_runner.config.serve import SERVES


@functools.cache
def register() -> None:
    """Make the schema known to Hydra, as `schema` and `<group>/<kind>_schema`."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, kinds in (("backend", BACKENDS), ("launcher", LAUNCHERS), ("serve", SERVES)):
        for kind, node in kinds.items():
            store.store(group=group, name=f"{kind}_schema", node=node)


def composed(config: DictConfig | dict[str, Any]) -> DictConfig:
    """A configuration (Hydra's, or the one in a cell.yaml) laid over the schema, which checks names and types."""
    plain: Any = OmegaConf.to_container(config, resolve=False) if isinstance(config, DictConfig) else dict(config)
    plain.pop("hydra", None)
    serve = plain.get("serve", {}).get("kind", "none")  # an old cell.yaml has none
    return OmegaConf.merge(_schema(plain["backend"]["kind"], plain["launcher"]["kind"], serve), plain)  # type: ignore[return-value]


@functools.cache
def _schema(backend: str, launcher: str, serve: str) -> DictConfig:
    schema = OmegaConf.structured(Config)
    schema.backend = BACKENDS[backend]
    schema.launcher = LAUNCHERS[launcher]
    schema.serve = SERVES[serve]
    return schema


def typed(config: DictConfig | dict[str, Any]) -> Config:
    """The configuration as plain dataclasses, all interpolations resolved (also ${oc.env:NAME})."""
    checked = isinstance(config, DictConfig) and OmegaConf.get_type(config) is Config and "hydra" not in config
    return OmegaConf.to_object(config if checked else composed(config))  # type: ignore[return-value, arg-type]


ENV_REFERENCE = re.compile(r"\$\{\s*oc\.env\s*:\s*([^},\s]+)")
"""A reference to a variable, ${oc.env:NAME}: what may stand for a secret on disk; its group is the name."""


def without_secrets(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain data, resolved except for ${oc.env:NAME}: fit to be written to disk.

    What takes such a value over from another option (${agent.env.KEY}) is not resolved either.
    """
    names = ENV_REFERENCE.findall(json.dumps(OmegaConf.to_container(config, resolve=False), default=str))
    return _plain(config, {os.environ[name] for name in names if os.environ.get(name)})


def _plain(node: Any, secrets: set[str]) -> Any:
    if isinstance(node, DictConfig):
        return {str(key): _item(node, key, secrets) for key in node}
    if isinstance(node, ListConfig):
        return [_item(node, index, secrets) for index in range(len(node))]
    return node.name if isinstance(node, Enum) else node


def _item(parent: DictConfig | ListConfig, key: Any, secrets: set[str]) -> Any:
    child = parent._get_node(key)
    raw = child._value() if isinstance(child, Node) else None
    if not isinstance(raw, str) or "${" not in raw:
        return _plain(parent[key], secrets)
    if ENV_REFERENCE.search(raw):
        return raw
    resolved = _plain(parent[key], secrets)
    return raw if any(secret in str(resolved) for secret in secrets) else resolved
