"""`settings` checks the address of the history."""

from __future__ import annotations

import pytest

from trainmaster_operator.api.options import InvalidSetting
from trainmaster_operator.controller.settings import parse_history


def test_the_address_of_a_history_has_a_scheme_and_a_host_and_neither_password_nor_query() -> None:
    assert parse_history("https://history.example.com:8443/a/") == "https://history.example.com:8443/a"
    assert parse_history("http://[::1]/") == "http://[::1]"
    for url in (
        "history.example.com",
        "ftp://x/",
        "https://",
        "https://h:99999/",
        "https://a b/",
        "https://[x/",
        "https://h\n/",
        "https://h/?a=b",
        "https://h/#a",
    ):
        with pytest.raises(InvalidSetting, match="use http://host:port"):
            parse_history(url)
    with pytest.raises(InvalidSetting, match="--history-token-file") as error:
        parse_history("https://ada:secret@h/")
    assert "secret" not in str(error.value)
