"""Reports: the paper's table and figures from the results of an experiment, or what is known of one run.

from open_nvib.report import Plan, RowPlan, read_results, write_report

plan = Plan("table", "The table", "small", (RowPlan("vt", seeds=(0, 1), paper="vt"),))
write_report(read_results(plan, "runs/table"), "runs/table/report")

`__init__.pyi` lists the public names; each is imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
