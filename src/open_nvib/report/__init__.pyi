from .figures.models import draw_lengths as draw_lengths
from .results import Plan as Plan
from .results import Results as Results
from .results import RowPlan as RowPlan
from .results import read_results as read_results
from .write import WrittenReport as WrittenReport
from .write import check_output as check_output
from .write import report_on as report_on
from .write import run_page as run_page
from .write import write_report as write_report
from .write import write_run_report as write_run_report

__all__: list[str]
