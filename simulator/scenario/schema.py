"""The JSON Schema of scenario files, for editors."""

from __future__ import annotations

from typing import Any

from simulator.scenario.fields import ScenarioFields


def schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    result = ScenarioFields.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **result}
