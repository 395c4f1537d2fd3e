"""`nvib report`."""

import sys

from jsonargparse import ArgumentParser, Namespace


def describe_report(parser: ArgumentParser) -> None:
    parser.add_argument("path", type=str, help="an experiment, such as experiments/table.yaml, or a run directory")
    parser.add_argument("--output", type=str | None, default=None, help="the directory to write the report to")
    parser.add_argument("--cells", type=str | None, default=None, help="a directory of results to report instead")


def run_report(given: Namespace) -> None:
    from open_nvib.report import report_on

    written = report_on(given.path, output=given.output, cells=given.cells)
    for remark in written.remarks:
        print(f"nvib: {remark}", file=sys.stderr)
    print(written.page)
