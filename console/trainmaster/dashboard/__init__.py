"""`trainmaster dashboard` is a page about jobs, with the rights of who looks at it.

It has no rights of its own: all is asked with the viewer's token (in a cluster) or the kubeconfig (on a laptop, where a
page proves by a key that it was opened by the kubeconfig's owner). In the order of reading:

1. `app` has the routes; `guards` is what each request passes first: headers, Host and Origin, who asks, `errors` as
   sentences; `parameters` checks what is asked for. `launch` has a laptop's code and key, `static_files` the page.
2. `viewers` has a session for each token, with an `access` cache of what it may do. `parties` divide memory, work and
   connections among tenants, and `reading` keeps of the API server's answers only what `shapes` name.
3. The list: `scopes` share one watch between viewers, whose jobs are `rows` on a `board`; `nodes` is read from it too.
4. A job: `job_page` follows it, with `attempts`, pods and events (`objects`) and the ranks' `figures`, of which `seen`
   remembers some; `logs` has all ranks' output; `job_answers` what is asked once, and actions; `manifest` is YAML.
5. `streams` are server-sent events, in the JSON of `encoding`. `history` is what is read of a history.
"""
