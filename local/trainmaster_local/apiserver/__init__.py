"""The API server: every request, in process or over HTTP, takes the one path of `api`.

| to read | what it does |
|---|---|
| `resources`, `storage` | what a type is, with hooks that `kinds` fills; objects and their history in memory |
| `api`, `writing`, `deleting` | the verbs; a body becomes a stored revision; finalizers and grace periods |
| `listing`, `watching`, `selectors` | pages of one moment, events, which objects |
| `objectmeta`, `names`, `validating`, `plans`, `scaling` | what all types have in common |
| `errors`, `deep` | every refusal in Kubernetes' words; JSON of any depth |
| `patches/` | merge, JSON and strategic patches; server-side apply |
| `definitions/`, `rules/` | custom resources and their schemas; CEL in them and in admission policies |
| `http/` | Kubernetes' REST protocol around all of it |
"""
