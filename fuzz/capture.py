#!/usr/bin/env python3
"""Captures what this kernel says over netlink: the seeds in seeds/netlink. Only needed to make new ones.

As root, from the repository: `unshare -n fuzz/capture.py target/debug/ferroxy`
Loads the rendered rules of two conformance cases into the (new, empty) network namespace and asks for everything.
"""
import pathlib, socket, struct, subprocess, sys

ROOT = pathlib.Path(__file__).parent
CASES = ROOT.parent / "conformance/cases"
NETLINK_ROUTE, NETLINK_NETFILTER = 0, 12
REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
NFT = lambda message: 10 << 8 | message  # NFNL_SUBSYS_NFTABLES
NFPROTO_IPV4 = 2


def attribute(kind, text):
    data = text.encode() + b"\0"
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def ask(protocol, kind, body, flags=DUMP):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as door:
        door.settimeout(1)
        door.send(struct.pack("=IHHII", 16 + len(body), kind, REQUEST | ACK | flags, 1, 0) + body)
        answer = b""
        while True:
            part = door.recv(1 << 17)
            answer += part
            last_kind = struct.unpack_from("=H", part, 4)[0]
            if last_kind in (2, 3) or part[-20:-16] == struct.pack("=I", 20):  # an error, or the end of a listing
                return answer


def keep(name, data):
    # Small seeds are what a fuzzer mutates well: the first few messages of every answer.
    kept, at = b"", 0
    while at < len(data) and len(kept) < 3000:
        length = struct.unpack_from("=I", data, at)[0] + 3 & ~3
        kept, at = kept + data[at : at + length], at + length
    (ROOT / "seeds/netlink" / name).write_bytes(kept[:20000])


subprocess.run(["ip", "link", "add", "br0", "type", "bridge"], check=True)
subprocess.run(["ip", "link", "add", "v0", "master", "br0", "type", "veth", "peer", "v1"], check=True)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
keep("links", ask(NETLINK_ROUTE, 18, bytes(16)))
keep("addresses", ask(NETLINK_ROUTE, 22, bytes(8)))
header = bytes([NFPROTO_IPV4, 0, 0, 0])
keep("refused", ask(NETLINK_NETFILTER, NFT(1), header + attribute(1, "nobody"), flags=0))
keep("generation", ask(NETLINK_NETFILTER, NFT(16), header, flags=0))
for case in ("clusterip-affinity", "lb-source-ranges"):
    folder = CASES / case
    command = [sys.argv[1], "render", "--hostname-override=ka", "--proxy-mode=nftables", "--manifests", folder / "objects.yaml"]
    rules = subprocess.run(command, check=True, capture_output=True).stdout
    subprocess.run(["nft", "-f", "-"], input=rules, check=True)
    table = attribute(1, "ferroxy")
    for name, message, body in (("tables", 1, b""), ("chains", 4, table), ("rules", 7, table), ("sets", 10, table)):
        keep(f"{case}-{name}", ask(NETLINK_NETFILTER, NFT(message), header + body))
    elements = lambda name: ask(NETLINK_NETFILTER, NFT(13), header + table + attribute(2, name))
    for name in ("frontends", "hairpins", "sticky-endpoints", "allowed-sources", "firewalled"):
        keep(f"{case}-elements-{name}", elements(name))
    # Endpoints are in parts: the fullest of them.
    keep(f"{case}-elements-endpoints", max((elements(f"endpoints-{part}") for part in range(8)), key=len))
    subprocess.run(["nft", "flush", "ruleset"], check=True)
