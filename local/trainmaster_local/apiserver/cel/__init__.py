"""`rules` compiles and evaluates CEL rules (`x-kubernetes-validations`), and `costs` estimates their maximum cost.

`quantities` implements the functions on quantities.
"""
