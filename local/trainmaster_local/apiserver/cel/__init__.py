"""CEL: `rules` compiles and evaluates `x-kubernetes-validations`, `costs` estimates what a rule may cost at most.

`quantities` has the functions on quantities.
"""
