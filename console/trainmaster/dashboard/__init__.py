"""`trainmaster dashboard` serves a web page about jobs, which shows only what its viewer may read.

The dashboard has no rights of its own. In a cluster it reads with the viewer's token. On a laptop it reads with the
kubeconfig, and a key proves that the kubeconfig's owner opened the page. Read the modules in this order:

1. `app` defines the routes and serves the page's files. `guards` checks each request's headers, Host, Origin, viewer
   and parameters, and a laptop's code and key.
2. `sessions` keeps a session for each token, with its permissions (`client.permission`) and history. `tenants` divides
   memory, work and connections among tenants. `reading` trims the API server's answers to the fields in `shapes`.
3. The list of jobs: `scopes` lets viewers share one watch. The watched jobs become rows of a `board`.
4. One job: `job_page` follows the job, its attempts, pods and events, and its ranks' `figures`. `objects` reads pods,
   events and nodes. `logs` sends the ranks' output. `job_answers` handles actions and single answers, such as the
   manifest, and `comparing` compares runs.
5. `streams` encodes answers: JSON, error messages, and server-sent events.
"""
