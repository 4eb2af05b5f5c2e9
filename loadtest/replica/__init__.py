"""A vLLM-shaped fake replica: real token ids and prefix cache, made-up words, faults on request."""

from loadtest.replica.behaviour import KNOWN, parse_behaviour
from loadtest.replica.options import ReplicaOptions
from loadtest.replica.record import Record
from loadtest.replica.server import FakeReplica

__all__ = ["KNOWN", "FakeReplica", "Record", "ReplicaOptions", "parse_behaviour"]
