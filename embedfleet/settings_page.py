"""Write docs/settings.md from the settings themselves: python -m embedfleet.settings_page [--check]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from embedfleet.generated import write_or_check
from embedfleet.settings import Settings

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

_HEAD = """# Settings

Every setting of a host, generated from `embedfleet/settings.py` (`make docs`). Write them in `group_data/*.py` or beside a
host in the inventory; a name that is not here is refused, and so is a wrong type. `--data name=value` sets one for a run.

| setting | type | default | what it is |
|---|---|---|---|
"""


def _type(schema: dict[str, Any]) -> str:
    """Return a JSON schema's type as people write it."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    kind = {"string": "text", "integer": "integer", "number": "number", "boolean": "yes/no", "null": "none"}.get(
        schema.get("type", ""), ""
    )
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if schema.get("type") == "object":
        return f"{{text: {_type(schema['additionalProperties'])}}}"
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if low is not None:
        kind += f" {low} to {high}" if high is not None else f" from {low}"
    return kind


def page() -> str:
    """Return the page."""
    schema = Settings.model_json_schema()
    rows = []
    for name, field in Settings.model_fields.items():
        default = repr(field.default).replace("|", "\\|")
        rows.append(f"| `{name}` | {_type(schema['properties'][name])} | `{default}` | {field.description} |")
    text = _HEAD + "\n".join(rows) + "\n"
    for name in ("KnownModel", "Patch", "PrecompiledWheel"):
        parts = schema["$defs"][name]["properties"]
        fields = ", ".join(f"`{field}`" for field in parts)
        text += f"\n{name}: a dict of {fields}{'; `sha256` is 64 hex digits' if 'sha256' in parts else ''}.\n"
    return text


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page))
