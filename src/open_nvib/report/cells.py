"""Kept until `open_nvib.experiments` reads typed results."""

from typing import Any


def is_cell(content: Any) -> bool:
    return isinstance(content, dict) and {"row", "seed", "evaluations"} <= content.keys()


def find(record: Any, path: str) -> Any:
    return record.get(path) if isinstance(record, dict) else None
