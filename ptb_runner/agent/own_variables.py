"""An agent of Harbor's that sees only the variables it was given, and none of the runner's own.

Harbor's agents fall back to the runner's environment: another agent's key, a base URL or a setting that happens to be
exported there would go into the sandbox, unasked and unrecorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, override

from harbor.agents.installed.base import BaseInstalledAgent
from harbor.agents.options import apply_env_fallbacks, cli_annotation, env_annotation
from pydantic.fields import FieldInfo


class OwnVariables(BaseInstalledAgent):
    """Comes before one of Harbor's classes: `agent.env` and `agent.env_vars` are all that it reads."""

    # Variables that Harbor's class takes from the runner's environment past these methods.
    AMBIENT: tuple[str, ...] = ()

    @classmethod
    @override
    def parse_options(cls, kwargs: dict[str, Any] | None = None, env: Mapping[str, str] | None = None) -> Any:
        model = cls.options_model
        if model is None:
            return super().parse_options(kwargs, env)
        nothing = {name: None for name, field in model.model_fields.items() if _has_fallback(field)}
        return super().parse_options(nothing | apply_env_fallbacks(model, kwargs or {}, (env or {}).get), env)

    @override
    def _env_sources(self) -> tuple[Mapping[str, str], ...]:
        return (self._resolved_env_vars, self._extra_env)

    @override
    def _resolve_model_connection(self, model_name: str | None, spec: Any = None, *, bridge: Any = None) -> Any:
        def given(*names: str) -> tuple[str, str] | None:
            return next(((name, self._extra_env[name]) for name in names if name in self._extra_env), None)

        of_class, options = type(self), self._connection_options(spec)
        if bridge is not None:
            return of_class.resolve_model_connection_config_for_bridge(bridge, model_name, given, **options)
        return of_class.resolve_model_connection_for_execution(model_name, given, **options)

    def _connection_options(self, spec: Any) -> dict[str, Any]:
        return {
            "spec": spec,
            "skip_model_parsing": self.skip_model_parsing,
            "explicit_env": self._extra_env,
            "base_url": self._base_url,
            "model_api_key_name": self._model_api_key_name,
            "model_api_format": self._model_api_format,
            "kwargs": self._model_connection_kwargs,
        }

    @override
    async def exec_as_agent(
        self,
        environment: Any,
        command: str,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        timeout_sec: int | None = None,
    ) -> Any:
        own = {name: value for name, value in (env or {}).items() if name not in self.AMBIENT}
        return await super().exec_as_agent(environment, command, env=own, cwd=cwd, timeout_sec=timeout_sec)


def _has_fallback(field: FieldInfo) -> bool:
    annotations = (cli_annotation(field), env_annotation(field))
    return any(annotation is not None and annotation.fallback is not None for annotation in annotations)
