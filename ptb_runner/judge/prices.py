"""What a judge's LLM costs: as configured, else OpenAI's list price, by the table of litellm, which Harbor brings."""

from __future__ import annotations

import os
from typing import Any

from ptb_runner.config import JudgeConfig, JudgesConfig, PriceConfig

MILLION = 1e6
LISTED = "OpenAI's list prices (litellm)"


def of(judges: JudgesConfig, own: JudgeConfig) -> tuple[PriceConfig, str | None]:
    """The prices, and where they are from; None when they are not known. A server of one's own has no list prices."""
    price = own.usd_per_mtok
    if price.input is not None and price.output is not None:
        return price, "configuration"
    if judges.base_url or os.environ.get("OPENAI_BASE_URL"):
        return price, None
    listed = _listed(judges.model or own.model)
    return (listed, LISTED) if listed else (price, None)


def _listed(model: str) -> PriceConfig | None:
    try:
        from litellm import model_cost  # takes seconds: only ever beside a judge's minutes
    except Exception:  # a verdict is not lost for want of a price
        return None
    found: dict[str, Any] = model_cost.get(model) or {}
    names = ("input_cost_per_token", "cache_read_input_token_cost", "output_cost_per_token")
    given, cached, made = (round(value * MILLION, 6) if (value := found.get(name)) else None for name in names)
    return PriceConfig(given, cached, made) if given and made else None
