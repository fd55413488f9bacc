"""Report: what was learned, in one HTML file that needs no network."""

from orbitwise.report.page import write_report
from orbitwise.report.ranges import RangeHistory, record_ranges

__all__ = ["RangeHistory", "record_ranges", "write_report"]
