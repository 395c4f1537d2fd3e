"""`nvib demo`: from nothing to a trained NVAE and what it can do, in minutes."""

from open_nvib.demo.demo import Terminal, demo
from open_nvib.store.task_settings import DemoConfig

__all__ = ["DemoConfig", "Terminal", "demo"]
