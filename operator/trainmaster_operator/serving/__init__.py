"""Makes all our aiohttp servers: the operator's ports, the history and the dashboard.

    app = application(most_body=65_536, middlewares=[...])
    server = HttpServer(app)
    address, port = await server.start("0.0.0.0", 8080)   # raises OSError; tls=SSLContext serves HTTPS
    await server.close()

1. `application` makes one. A request with a Content-Encoding gets 415, one with too large a body 413, and one that is
   too slow 408, before or while the handler reads it. An answer that left a body unread closes its connection.
2. `server` listens and accepts connections. `connection` limits the data that each of them may send, hold and leave
   unread, and chooses the connection to close for a newcomer, which is always accepted.
3. `Exposition` is a page of metrics that any client may request at any rate.
4. `logs` keeps clients' data, such as tokens, out of the log, and writes it as JSON or as text.
"""

from trainmaster_operator.serving.server import Exposition, HttpServer, application

__all__ = ["Exposition", "HttpServer", "application"]
