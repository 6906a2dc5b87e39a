"""Provides the aiohttp servers for the operator's ports, the history and the dashboard.

    app = application(most_body=65_536, middlewares=[...])
    server = HttpServer(app)
    address, port = await server.start("0.0.0.0", 8080)   # raises OSError; tls=SSLContext serves HTTPS
    await server.close()

1. `application` returns an application. It answers a request with a Content-Encoding with 415, a too large body with
   413, and a too slow body with 408, before or while the handler reads the body. If an answer leaves a body unread, the
   connection is closed.
2. `server` listens and accepts connections. `connection` limits the data that each connection may send, hold and leave
   unread. A new connection is always accepted; `connection` chooses which other connection is closed for it.
3. `Exposition` is a page of metrics that any client may request at any rate.
4. `stop_event` returns an event that SIGTERM and SIGINT set.
5. `logs` writes the log as JSON or as text, and keeps clients' data, such as tokens, out of it.
"""

from trainmaster_operator.serving.server import Exposition, HttpServer, application, stop_event
