"""Tables for `kubectl get`: `tables`, and the `jsonpath` of printer columns."""
