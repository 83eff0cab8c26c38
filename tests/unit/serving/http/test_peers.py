"""Whose request it is, by hand-worked chains of proxies."""

import pytest

from vitlab.core.errors import ConfigError
from vitlab.serving.http.peers import peer_of, read_networks

INSIDE = ("10.0.0.0/8", "127.0.0.1", "fd00::/8")


@pytest.mark.parametrize(
    ("client", "forwarded", "peer"),
    [
        ("203.0.113.5", [], "203.0.113.5"),
        ("203.0.113.5", ["198.51.100.7"], "203.0.113.5"),  # no proxy of ours: it may say what it likes
        ("10.0.0.2", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.2", ["6.6.6.6, 198.51.100.7"], "198.51.100.7"),  # the first is made up
        ("10.0.0.2", ["6.6.6.6, 198.51.100.7, 10.9.9.9"], "198.51.100.7"),  # two proxies
        ("10.0.0.2", ["6.6.6.6", "198.51.100.7"], "198.51.100.7"),  # two lines are one list
        ("10.0.0.2", ["10.1.1.1"], "10.1.1.1"),  # all of them ours
        ("10.0.0.2", [], "10.0.0.2"),
        ("10.0.0.2", ["198.51.100.7, unknown"], "10.0.0.2"),
        ("10.0.0.2", ["198.51.100.7,"], "10.0.0.2"),
        ("10.0.0.2", ["198.51.100.7:4711"], "198.51.100.7"),
        ("10.0.0.2", ["[2001:db8:1:2::77]:4711"], "2001:db8:1:2::/64"),
        ("10.0.0.2", ["::ffff:198.51.100.7"], "198.51.100.7"),
        ("::ffff:10.0.0.2", ["198.51.100.7"], "198.51.100.7"),  # a socket for both families
        ("fd00::1", ["2001:db8::1"], "2001:db8::/64"),
        ("fe80::1%eth0", ["198.51.100.7"], "fe80::/64"),
        ("10.0.0.2", ["198.51.100.7\nforged"], "10.0.0.2"),
    ],
)
def test_the_last_address_that_is_no_proxy(client: str, forwarded: list[str], peer: str) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    scope = {"client": (client, 1234), "headers": [(b"host", b"a"), *headers]}
    assert peer_of(scope, read_networks(INSIDE)) == peer


def test_without_proxies_the_header_is_ignored() -> None:
    scope = {"client": ("10.0.0.2", 1), "headers": [(b"x-forwarded-for", b"198.51.100.7")]}
    assert peer_of(scope) == "10.0.0.2"
    assert peer_of({"client": None, "headers": []}) == ""


def test_addresses_of_one_household_are_one_peer() -> None:
    first, second, other = (
        peer_of({"client": (address, 1), "headers": []})
        for address in ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:3::1")
    )
    assert first == second != other


@pytest.mark.parametrize("text", ["proxy.example", "", "10.0.0.0/99"])
def test_what_is_no_network(text: str) -> None:
    with pytest.raises(ConfigError, match="address or network"):
        read_networks([text])
