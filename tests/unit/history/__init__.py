"""The table names the test files of each module of `history`, here or in another folder of tests/.

| module | test files |
|---|---|
"""
