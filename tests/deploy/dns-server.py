#!/usr/bin/env python3
"""Returns the addresses of one name as a cluster's name server returns those of a headless service.

dns-server.py NAME FILE: the file has an address a line, and is read for each question.
"""

import ipaddress
import socket
import struct
import sys

name, file = sys.argv[1].lower().rstrip("."), sys.argv[2]
A, AAAA, NXDOMAIN = 1, 28, 3
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("ready", flush=True)
while True:
    query, peer = server.recvfrom(512)
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    kind = struct.unpack("!H", query[at + 1 : at + 3])[0]
    known = ".".join(labels) == name
    addresses = open(file).read().split() if known and kind == A else []
    # an answer, with recursion, authoritative, and the question again
    answer = query[:2] + struct.pack("!5H", 0x8580 | (0 if known else NXDOMAIN), 1, len(addresses), 0, 0)
    answer += query[12 : at + 5]
    for address in addresses:
        # the name by its place in the question, the class IN, for 5 s
        answer += struct.pack("!3HIH", 0xC00C, A, 1, 5, 4) + ipaddress.IPv4Address(address).packed
    server.sendto(answer, peer)
