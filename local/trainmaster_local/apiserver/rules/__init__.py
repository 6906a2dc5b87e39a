"""CEL: `cel` compiles and runs rules, `cel_costs` estimates what they cost at most, as kube-apiserver does before it
accepts a definition, and `admission_policies` enforces ValidatingAdmissionPolicies on every write."""
