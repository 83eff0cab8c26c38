"""Who asks: the address that requests are told apart by, behind proxies too."""

import ipaddress
from collections.abc import Sequence
from typing import TypeAlias

from starlette.types import Scope

from vitlab.core.errors import ConfigError

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

HOUSEHOLD = 64  # bits of an IPv6 address; the rest is its owner's to choose


def read_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Addresses (10.0.0.2) and networks (10.0.0.0/8) of proxies."""
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
    except ValueError as error:
        raise ConfigError(f"A proxy is given by its address or network, as 10.0.0.2 or 10.0.0.0/8: {error}.") from error


def peer_of(scope: Scope, proxies: Sequence[Network] = ()) -> str:
    """The client's address; of a request that came by trusted proxies the last one in X-Forwarded-For that is none.

    What stands before that one in the header its sender has made up, or may have.
    """
    client: tuple[str, int] | None = scope.get("client")
    address = _address(client[0]) if client else None
    if address is None:  # a socket of the file system
        return ""
    if proxies:
        fields = (value for name, value in scope["headers"] if name == b"x-forwarded-for")
        forwarded = b",".join(fields).decode("latin-1").split(",")
        while _trusted(address, proxies) and forwarded and (before := _address(forwarded.pop())) is not None:
            address = before
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, HOUSEHOLD), strict=False))
    return str(address)


def _trusted(address: Address, proxies: Sequence[Network]) -> bool:
    return any(address in network for network in proxies)


def _address(text: str) -> Address | None:
    """The address, written with or without a port; None where it is none."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
