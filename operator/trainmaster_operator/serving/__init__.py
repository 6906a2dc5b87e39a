"""Every aiohttp server of ours is made here: the operator's ports, the history and the dashboard.

    app = application(most_body=65_536, middlewares=[...])
    server = HttpServer(app)
    address, port = await server.start("0.0.0.0", 8080)   # raises OSError; tls=SSLContext serves HTTPS
    await server.close()

1. `app` makes the application. A request with a Content-Encoding is answered 415, a body that is too large 413, and one
   that is too slow 408, before or while the handler reads it. An answer that left a body unread closes its connection.
2. `server` listens and lets connections in, `connection` bounds what each of them may bring, hold and leave unread.
3. `places` decides which connection gives way to a newcomer, who always gets in.
4. `exposition` is a page of metrics that anybody may ask for as often as they like.
5. `log` keeps what clients sent, tokens among it, out of the log; `log_formats` writes it as JSON or as text.
"""

from trainmaster_operator.serving.app import application
from trainmaster_operator.serving.exposition import Exposition
from trainmaster_operator.serving.server import HttpServer

__all__ = ["Exposition", "HttpServer", "application"]
