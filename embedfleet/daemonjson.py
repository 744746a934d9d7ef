"""Docker's daemon.json: the NVIDIA runtime added to what somebody else wrote, and taken out again. Pure.

`nvidia-ctk runtime configure` would do, but (its sources, pkg/config/engine/docker) it sorts the keys, drops the other features when it
adds one, overwrites a runtime of that name, and cannot tell afterwards what was its own.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

#: What we add, where it is not there.
RUNTIME = {"args": [], "path": "nvidia-container-runtime"}


class Odd(Exception):
    """The file is not what docker, or we, could go on with; says why."""


def with_nvidia(text: str | None, *, cdi: bool) -> str | None:
    """Return the file's new text, or None where nothing is missing. What is there stays as it is, also what concerns us.

    :param text: the file's; None where there is no file
    :param cdi: whether this docker needs to be told to take CDI
    :raises Odd: where it is no JSON object, or `runtimes` is none
    """
    config = parsed(text)
    missing = _add(config, "runtimes", "nvidia", RUNTIME)
    if cdi:
        missing = _add(config, "features", "cdi", True) or missing
    return _written(config, text) if missing else None


def without_nvidia(text: str | None, before: str | None) -> str | None:
    """Return the file's text without what we added to `before`; None where no file is to be there.

    What somebody changed since then stays. So does the runtime where it has become the default, as docker would not start without it.

    :raises Odd: where one of the two is no JSON object
    """
    if text is None:
        return None
    original, config = parsed(before), parsed(text)
    default = config.get("default-runtime") == "nvidia"
    for table, key, ours in (("runtimes", "nvidia", RUNTIME), ("features", "cdi", True)):
        there, was = config.get(table), original.get(table)
        if not isinstance(there, dict) or (isinstance(was, dict) and key in was) or (default and key == "nvidia"):
            continue
        if there.get(key) == ours:
            del there[key]
            if not there and table not in original:
                del config[table]
            elif not there and was is None:
                config[table] = None
    if config == original:
        return before
    return _written(config, text)


def untouched(text: str | None) -> bool:
    """Whether nothing of what we add is in the file: it is somebody's own, whatever we did to one before."""
    config = parsed(text)
    tables = [(config.get(table), key) for table, key in (("runtimes", "nvidia"), ("features", "cdi"))]
    return not any(isinstance(inner, dict) and key in inner for inner, key in tables)


def live_restore(text: str | None) -> bool:
    """Whether containers outlive a restart of docker."""
    try:
        return parsed(text).get("live-restore") is True
    except Odd:
        return False


def takes_cdi(text: str | None) -> bool:
    """Whether the file turns CDI on."""
    features = parsed(text).get("features")
    return isinstance(features, dict) and features.get("cdi") is True


def parsed(text: str | None) -> dict[str, Any]:
    """Return the file's content; an empty file and none are an empty object, as for docker.

    :raises Odd: where it is no JSON object
    """
    if text is None or not text.strip():
        return {}
    try:
        config = json.loads(text, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Odd(f"it is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise Odd(f"it holds a {type(config).__name__}, not an object")
    return config


def _add(config: dict[str, Any], table: str, key: str, value: Any) -> bool:
    inner = config.get(table)
    if inner is None:
        inner = config[table] = {}
    if not isinstance(inner, dict):
        raise Odd(f"its `{table}` is a {type(inner).__name__}, not an object")
    if key in inner:
        return False
    inner[key] = value
    return True


def _written(config: dict[str, Any], text: str | None) -> str:
    """Return JSON with the indentation that the file had."""
    found = re.search(r"\n([ \t]+)\S", text or "")
    indent = found[1] if found else "    "
    new = json.dumps(config, indent=indent, ensure_ascii=False) + "\n"
    try:
        new.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can say and UTF-8 cannot
        new = json.dumps(config, indent=indent) + "\n"
    return new


def _refused(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word} is too large a number")
    return number
