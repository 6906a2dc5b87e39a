"""`kubectl dtj history` shows the records of jobs, and writes their curves to files.

`showing` prints and exports; `page` draws tables and curves.
"""

# The formats of exports.
FORMATS = ("csv", "json", "parquet")
