"""`rules` compiles and evaluates CEL rules (`x-kubernetes-validations`), and `costs` estimates their maximum cost.

`quantities` has the functions on quantities.
"""
