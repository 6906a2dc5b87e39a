"""`trainmaster dashboard` is a page about jobs, with the rights of its viewer.

It has no rights of its own: it reads with the viewer's token (in a cluster) or the kubeconfig (on a laptop, where a
page proves by a key that the kubeconfig's owner opened it). In the order of reading:

1. `app` has the routes and the page's files; `guards` checks each request: headers, Host and Origin, who asks, and
   parameters. It has a laptop's code and key, too.
2. `viewers` has a session for each token, with a gate (`client.permission`) and a history. `parties` divide memory,
   work and connections among tenants, and `reading` keeps of the API server's answers only what `shapes` name.
3. The list: `scopes` share one watch between viewers, whose jobs are `rows` on a `board`; `nodes` reads it too.
4. A job: `job_page` follows it, with `attempts`, pods and events (`objects`) and the ranks' `figures`, some of which
   `seen` remembers; `logs` has all ranks' output; `job_answers` single answers, and actions; `manifest` is YAML.
5. `streams` are answers: JSON, sentences of errors, and server-sent events.
"""
