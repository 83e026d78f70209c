"""Mutated vectors against the decoders: `python tests/fuzz/fuzz_wire.py --seconds 30 --seed 1`.

Whatever arrives, a decoder raises ProtocolError or nothing, `sender_of` raises nothing, and what decodes can be encoded
again. A finding is printed in hex and ends the run with status 1; the seed makes it come back.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from recalld.wire import codec
from recalld.wire.codec import Encoding
from recalld.wire.errors import ProtocolError
from recalld.wire.messages import Request
from recalld.wire.operations import OPERATIONS

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"
ODD: list[Any] = [None, True, 0, -1, 2**53, 2**64 - 1, -(2**63), 1.5, "", "\0", "m1", "gw-1\n", "x" * 600, [], {}]
ODD += [[[]], {"": None}, float("inf"), b"\xff"]


def corpus(pattern: str) -> list[bytes]:
    found: list[bytes] = []
    for path in sorted(VECTORS.glob(pattern)):
        for case in json.loads(path.read_text(encoding="utf-8")):
            found += [case["json"].encode()] if "json" in case else []
            found += [bytes.fromhex(case["hex"])] if "hex" in case else []
    return found


def flip(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    for _n in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    start = rng.randrange(len(data))
    del data[start : rng.choice([len(data), start + rng.randint(1, 8)])]


def repeat(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    start = rng.randrange(len(data))
    data[start:start] = data[start : start + rng.randint(1, 16)] * rng.choice([1, 2, 50, 2000])


def splice(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    other = rng.choice(seeds)
    data[rng.randrange(len(data)) :] = other[rng.randrange(len(other) + 1) :]


def swap(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    """Another value somewhere in the decoded object, in either encoding: past the parser, into the types."""
    try:
        whole = (msgspec.json if data[:1] == b"{" else msgspec.msgpack).decode(bytes(data))
        node = whole
        while isinstance(node, (dict, list)) and node:
            key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if rng.random() < 0.5 or not isinstance(node[key], (dict, list)):
                node[key] = rng.choice(ODD)
                break
            node = node[key]
        data[:] = codec.encode(whole, rng.choice(list(Encoding)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, TypeError):
        return  # a seed, or an earlier mutation, that is no object at all


MUTATIONS: list[Callable[[random.Random, bytearray, list[bytes]], None]] = [flip, cut, repeat, splice, swap, swap]


def feed(data: bytes, counts: Counter[str]) -> None:
    """One message through everything that reads messages. Raises what must not be raised."""
    codec.sender_of(data)
    for decode in (codec.decode_event, codec.decode_request):
        try:
            message, _ = decode(data)
            counts["decoded"] += 1
            codec.encode(message, Encoding.JSON)
        except ProtocolError as e:
            counts[e.code] += 1
            continue
        if isinstance(message, Request):
            for params, _result in OPERATIONS.values():
                try:
                    codec.convert(message.params, params)
                except ProtocolError as e:
                    counts[e.code] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    args = parser.parse_args()
    rng, counts = random.Random(args.seed), Counter[str]()
    # Most mutations start at what a daemon reads and is valid: what is broken already is refused at its first fault.
    start = corpus("valid/event.json") + corpus("valid/request.json")
    seeds = corpus("*valid/*.json")
    print(f"seed {args.seed}, {len(seeds)} vectors, {args.seconds:g} s", flush=True)
    end = time.monotonic() + args.seconds
    while time.monotonic() < end:
        data = bytearray(rng.choice(start if rng.random() < 0.8 else seeds))
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            if data:
                rng.choice(MUTATIONS)(rng, data, seeds)
        try:
            feed(bytes(data), counts)
        except BaseException as e:  # whatever it is, it is a finding
            print(f"FOUND {type(e).__name__}: {e}\nseed {args.seed}, message {counts['messages']}\n{data.hex()}")
            return 1
        counts["messages"] += 1
    print(", ".join(f"{name} {count}" for name, count in counts.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
