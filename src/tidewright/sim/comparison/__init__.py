"""comparison: results of many cells (policies × loads × seeds × …) side by side: intervals, who is best, tables, pages.

It refuses to know how cells are run.
"""
