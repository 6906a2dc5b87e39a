"""Provides the aiohttp servers for the operator's ports, the history and the dashboard.

    app = application(most_body=65_536, middlewares=[...])
    server = HttpServer(app)
    address, port = await server.start("0.0.0.0", 8080)   # raises OSError; tls=SSLContext serves HTTPS
    await server.close()

1. `application` returns an application. It refuses a request that has a Content-Encoding (415), a too large body (413)
   or a too slow body (408), before or while the handler reads the body. If an answer leaves a body unread, the
   connection is closed.
2. `server` listens and accepts connections. `connection` limits the data that each connection may send, hold and leave
   unread. A new connection is always accepted. If there is no room for it, `connection` chooses another connection,
   which is closed.
3. `Exposition` serves a page of metrics; any client may request it at any rate.
4. `stop_event` returns an event that SIGTERM and SIGINT set.
5. `logs` writes the log as JSON or as text, and keeps clients' data, such as tokens, out of it.
"""

from trainmaster_operator.serving.server import Exposition, HttpServer, application, stop_event
