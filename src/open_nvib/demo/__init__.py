"""`nvib demo`: from nothing to a trained NVAE and what it can do, in minutes."""

from open_nvib.demo.demo import DemoConfig, demo

__all__ = ["DemoConfig", "demo"]
