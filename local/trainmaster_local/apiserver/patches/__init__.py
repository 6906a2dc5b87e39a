"""How a patch changes an object.

`patching` has the two patches of the RFCs, `strategic` that of built-in types. Server-side apply is `merging` (the
applied configuration into the object) and `managed` (who owns which field), on the sets of fields of `fieldsets`; read
`fieldsets` first.
"""
