"""Whether keys are plainly bad: one call a key that costs nothing, before anything is paid for.

`preflight.probe_keys=true` asks for the list of models, with the key, where the key is for, and the model hub whose its
token is. Only a server that says no to the key is a fault; one that cannot be reached, or knows no such question, is
for the run to find out about.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from ptb_runner import keys
from ptb_runner.agent import clis
from ptb_runner.config import Config
from ptb_runner.redact import Redactor

_SEC = 15
# Where a provider's list of models is, by the name of its key.
MODELS = {
    "ANTHROPIC_API_KEY": "https://api.anthropic.com/v1/models?limit=1",
    "OPENAI_API_KEY": "https://api.openai.com/v1/models",
    "GEMINI_API_KEY": "https://generativelanguage.googleapis.com/v1beta/models?pageSize=1",
}
_HUB = "https://huggingface.co"
_PATHS = {"claude-code": "/v1/models", "gemini-cli": "/v1beta/models"}  # behind a base URL of one's own


def refusals(config: Config) -> list[str]:
    """The keys that are refused, by name, with what to do."""
    places = {name: MODELS[name] for name in keys.of_cell(config) if name in MODELS}
    if "HF_TOKEN" in keys.of_cell(config):
        places["HF_TOKEN"] = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/") + "/api/whoami-v2"
    agent = config.agent
    if agent.base_url and agent.env_vars:
        places[agent.env_vars[0]] = clis.endpoint(agent)["base_url"] + _PATHS.get(agent.name or "", "/models")
    grader = config.benchmark.evaluation.grader.base_url
    if grader and "OPENAI_API_KEY" in config.benchmark.env_vars:
        places["OPENAI_API_KEY"] = grader.rstrip("/") + "/models"
    told = []
    for name, url in places.items():
        if os.environ.get(name) and (reason := _refused(url, os.environ[name].strip())):
            host = urlsplit(url).netloc
            told.append(f"{name}: {host} refuses this key: {reason}\n  export {name}=... with one that is valid")
    return told


def _refused(url: str, key: str) -> str | None:
    """Why a server refuses a key; None when it does not, or does not say."""
    # Each protocol takes its own of these and looks at none of the others.
    headers = {"Authorization": f"Bearer {key}", "x-api-key": key, "x-goog-api-key": key}
    request = urllib.request.Request(url, headers={**headers, "anthropic-version": "2023-06-01"})
    try:
        urllib.request.urlopen(request, timeout=_SEC).close()
    except urllib.error.HTTPError as error:
        words = _words(error.read(4096))
        plain = error.code in (401, 403) or (error.code == 400 and "api key" in words.lower())  # the latter is Gemini's
        return Redactor({"the key": key}).text(f"HTTP {error.code} {words}".strip()) if plain else None
    except (OSError, ValueError):
        return None
    return None


def _words(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        text = ""
    return " ".join(str(text).split())[:200]
