"""Reports: the paper's table and figures from the results of an experiment, or what is known of one run.

from open_nvib.report.results import Plan, RowPlan, read_results
from open_nvib.report.report import write_report

plan = Plan("table", "The table", "small", (RowPlan("vt", seeds=(0, 1), paper="vt"),))
write_report(read_results(plan, "runs/table"), "runs/table/report")
"""
