"""A process that is no rank of the run that meets at a place, and says what it likes there.

stranger.py PLACE KIND [RUN]: PLACE is HOST:PORT or the path of a socket. It says everything as the page of
comm/connections/rank_handshake.h has it, with an empty secret. Kinds: `join` comes as rank 1 of 2, `size` says that there are 7
ranks, `version` has another version, `old` says what version 2 said, `noise` sends 1 MiB of anything, and `hold` keeps
600 connections, each with half a hello, until its input ends. What the other side answers is printed, a line each.
"""

import hashlib
import hmac
import os
import socket
import struct
import sys
import time

PURPOSE = b"Terrace: rank of a run, 3"
MAGIC, MESSAGES = 0x31484454, 1
WELCOME_BYTES, OLD_WELCOME_BYTES = 568, 504


def connect(place):
    family = socket.AF_UNIX if place.startswith("/") else socket.AF_INET
    address = place if family == socket.AF_UNIX else (place.rsplit(":", 1)[0], int(place.rsplit(":", 1)[1]))
    for _ in range(100):
        connection = socket.socket(family)
        try:
            connection.connect(address)
            return connection
        except OSError as error:
            connection.close()
            reason = error
            time.sleep(0.1)
    sys.exit(f"nobody listens at {place}: {reason}")


def run_number(name):
    number = 0xCBF29CE484222325
    for byte in name.encode():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return number


def read(connection, count):
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            break
        data += piece
    return data


def refusal_in(answer):
    return answer[8:504].split(b"\0")[0].decode() if answer[4:8] != b"\0\0\0\0" else None


def say(place, run, size=2, version=3):
    connection = connect(place)
    hello = struct.pack("<IIQIIII", MAGIC, version, run_number(run), 1, size, MESSAGES, 0) + os.urandom(32)
    connection.sendall(hello[:32] if version == 2 else hello)
    answer = read(connection, OLD_WELCOME_BYTES if version == 2 else WELCOME_BYTES)
    if refusal_in(answer) is None:
        told = answer[504:536]
        connection.sendall(hmac.new(b"", PURPOSE + b"C" + hello + told, hashlib.sha256).digest())
        answer = read(connection, WELCOME_BYTES)
    print("taken in" if refusal_in(answer) is None else "refused: " + refusal_in(answer), flush=True)


def main():
    place, kind = sys.argv[1], sys.argv[2]
    run = sys.argv[3] if len(sys.argv) > 3 else ""
    if kind == "noise":
        try:
            connect(place).sendall(os.urandom(1 << 20))
        except OSError:
            pass
        print("refused: noise", flush=True)
    elif kind == "hold":
        held = [connect(place) for _ in range(600)]
        for connection in held:
            connection.sendall(b"TDH1")
        print("holds", flush=True)
        sys.stdin.read()
    else:
        say(place, run, 7 if kind == "size" else 2, {"version": 9, "old": 2}.get(kind, 3))


main()
