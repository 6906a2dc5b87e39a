"""The table names the test files of each module of `dashboard`, here or in another folder of tests/.

| module | test files |
|---|---|
"""
