"""What the operator sends to addresses of its own (the webhook, the history) goes out by POST, with a secret of a file.

`posting` sends one request and says what came of it; `headers` reads the file.
"""
