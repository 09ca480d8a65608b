"""The JSON Schema of the policy: ``python -m bridge.api.policy_schema > docs/policy.schema.json``. A test compares."""

from __future__ import annotations

import json
import sys
from typing import Any

from bridge.model.policy import Policy


def schema() -> dict[str, Any]:
    """JSON Schema 2020-12, for editors and for checks without a broker. What only a broker can know is not in it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Policy.model_json_schema(by_alias=True)}


def page() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
