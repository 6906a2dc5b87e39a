"""`trainmaster dashboard` serves a page about jobs, with the rights of its viewer.

It has no rights of its own. In a cluster it reads with the viewer's token, and on a laptop with the kubeconfig, where a
key proves that the kubeconfig's owner opened the page. Read the modules in this order:

1. `app` has the routes and the page's files; `guards` checks each request: headers, Host and Origin, its viewer, and
   parameters. It has a laptop's code and key, too.
2. `viewers` has a session for each token, with a gate (`client.permission`) and a history. `parties` divide memory,
   work and connections among tenants. `reading` trims the API server's answers to the fields in `shapes`.
3. The list: `scopes` share one watch between viewers, whose jobs are rows on a `board`; `nodes` reads it too.
4. A job: `job_page` follows it, with its attempts, pods and events (`objects`) and the ranks' `figures`. `logs` has all
   ranks' output, `job_answers` has single answers (such as the manifest) and actions.
5. `streams` are answers: JSON, sentences of errors, and server-sent events.
"""
