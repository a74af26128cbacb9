"""report: how results look as a page: one style, the frame of the HTML, and plots as SVG. Used by rooms that have results.

Refuses to know what is shown. matplotlib (extra ``report``) is imported when the first plot is drawn.
"""

MAY_IMPORT = ("base",)
