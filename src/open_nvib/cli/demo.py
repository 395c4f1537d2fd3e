"""`nvib demo`."""

from jsonargparse import ArgumentParser, Namespace

from open_nvib.cli.tools import build


def describe_demo(parser: ArgumentParser) -> None:
    from open_nvib.demo import DemoConfig

    parser.add_class_arguments(DemoConfig)


def run_demo(given: Namespace) -> None:
    from open_nvib.demo import DemoConfig, demo

    demo(build(DemoConfig, given))
