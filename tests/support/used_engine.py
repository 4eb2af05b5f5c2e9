"""An engine of the load test that has served, and what a scrape says in a form to compare."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from loadtest.replica.engine import Engine, Job
from loadtest.replica.options import ReplicaOptions


def samples(text):
    """name -> {labels: value}"""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def used_engine():
    options = ReplicaOptions(max_running=1, block_size=4, num_blocks=10)
    engine = Engine(options)
    job = Job([1] * 9, [5, 6])
    engine.submit(job, now=0.0)
    job.sent_tokens = 2
    engine.finish(job, "length", now=2.0)
    engine.submit(Job([1] * 9, [5, 6]), now=3.0)
    engine.submit(Job([2] * 9, [5, 6]), now=3.0)
    return engine, options
