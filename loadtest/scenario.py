"""What a load test does, as YAML: strict structures, and errors that name the place. Decides.

Times are seconds, rates are sessions per second (a session of one turn is a request), sizes of
prompts are words of common English: one to two tokens each. `Size` is a number or a distribution.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta, Struct

SCENARIOS = Path(__file__).parent / "scenarios"

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1)]


class ScenarioError(Exception):
    """One sentence: the file, the place in it, and what is wrong there."""


class _Part(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Uniform(_Part, frozen=True, tag_field="kind", tag="uniform"):
    low: NotNegative
    high: NotNegative


class LogNormal(_Part, frozen=True, tag_field="kind", tag="lognormal"):
    """`sigma` is that of the logarithm; draws are kept within `low` and `high`."""

    median: Positive
    sigma: NotNegative
    low: NotNegative = 0
    high: Positive = 1e6


class Choice(_Part, frozen=True, tag_field="kind", tag="choice"):
    values: Annotated[list[NotNegative], Meta(min_length=1)]
    weights: list[NotNegative] | None = None


Size = Annotated[float, Meta(ge=0)] | Uniform | LogNormal | Choice


class Constant(_Part, frozen=True, tag_field="kind", tag="constant"):
    rate: Positive


class Poisson(_Part, frozen=True, tag_field="kind", tag="poisson"):
    rate: Positive


class Gamma(_Part, frozen=True, tag_field="kind", tag="gamma"):
    """Gaps are gamma distributed: `burstiness` 1 is Poisson, below 1 it comes in clusters."""

    rate: Positive
    burstiness: Positive


class Burst(_Part, frozen=True, tag_field="kind", tag="burst"):
    """`size` at once every `every_s`, on top of a Poisson process of `rate` (0: nothing else)."""

    size: Count
    every_s: Positive
    rate: NotNegative = 0


class Ramp(_Part, frozen=True, tag_field="kind", tag="ramp"):
    """A Poisson process whose rate goes evenly from `rate` to `to` over the run."""

    rate: Positive
    to: Positive


class Closed(_Part, frozen=True, tag_field="kind", tag="closed"):
    """`users` who each wait for an answer, then `think_s`, before they ask again."""

    users: Count
    think_s: Size = 0


Arrivals = Constant | Poisson | Gamma | Burst | Ramp | Closed


class Prefix(_Part, frozen=True):
    """A system prompt of `words`, one of `groups` different ones for each session."""

    words: Count
    groups: Count = 1


class Disconnects(_Part, frozen=True):
    """A `share` of requests leaves after so many pieces of content (0: with the request sent)."""

    share: Share
    after_tokens: Size = 5


class SlowReaders(_Part, frozen=True):
    """A `share` of sessions reads, stops for `pause_s`, and reads again."""

    share: Share
    pause_s: Positive = 0.05


class Model(_Part, frozen=True):
    name: str
    weight: Positive = 1


class Requests(_Part, frozen=True):
    """One kind of request; `weight` is its part of all."""

    name: str
    prompt: Size
    output: Size
    weight: Positive = 1
    prefix: Prefix | None = None
    turns: Size = 1
    think_s: Size = 0
    disconnects: Disconnects | None = None
    slow_readers: SlowReaders | None = None
    body: dict[str, Any] = {}


class Connections(_Part, frozen=True):
    """`reuse`: keep connections for later requests; `resume`: resume TLS sessions on new ones;
    `http2_streams`: up to so many requests at a time on each, by HTTP/2; 0: HTTP/1.1."""

    reuse: bool = True
    resume: bool = True
    http2_streams: Annotated[int, Meta(ge=0)] = 0


class Happening(_Part, frozen=True):
    """Something that is done to the server `at_s` after the run's begin, warm-up included; the
    command says what `do` is."""

    at_s: NotNegative
    do: str


class Scenario(_Part, frozen=True):
    """`timeout_s` bounds each request, from its sending to the end of its answer. `processes`: so
    many clients share the load."""

    name: str
    arrivals: Arrivals
    requests: Annotated[list[Requests], Meta(min_length=1)]
    duration_s: Positive
    warm_up_s: NotNegative = 0
    timeout_s: Positive = 120
    processes: Count = 1
    description: str = ""
    models: Annotated[list[Model], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [Model(name="demo")]
    )
    headers: dict[str, str] = {}
    connections: Connections = Connections()
    happenings: list[Happening] = []

    @property
    def total_s(self) -> float:
        return self.warm_up_s + self.duration_s


class _OneKeyOnce(yaml.SafeLoader):
    """YAML in which a key stands once in its mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key.value, str):
                raise ScenarioError(f"line {line}: a key must be plain text")
            if key.value in seen:
                raise ScenarioError(f"line {line}: {key.value!r} stands twice in one mapping")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def shipped() -> list[str]:
    """Names of the scenarios that come with the load test."""
    return sorted(path.stem for path in SCENARIOS.glob("*.yaml"))


def load_scenario(name: str) -> Scenario:
    """Read a file, or a shipped scenario by its name. ScenarioError."""
    path = SCENARIOS / f"{name}.yaml" if name in shipped() else Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        known = ", ".join(shipped())
        raise ScenarioError(f"{name}: {error.strerror}; give a file, or one of: {known}") from error
    except ValueError as error:
        raise ScenarioError(f"{name}: not UTF-8 text; give a scenario, which is YAML") from error
    return parse_scenario(text, str(path))


def parse_scenario(text: str, where: str) -> Scenario:
    """ScenarioError says `where: place: what`."""
    try:
        document = yaml.load(text, _OneKeyOnce)
        scenario = msgspec.convert(document, Scenario)
    except yaml.YAMLError as error:
        raise ScenarioError(f"{where}: {' '.join(str(error).split())}") from error
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        raise ScenarioError(f"{where}: {place.strip('.`') or 'file'}: {what}") from error
    except ScenarioError as error:
        raise ScenarioError(f"{where}: {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML's own, of dates and numbers that are none and of lists a thousand deep.
        raise ScenarioError(f"{where}: not usable as YAML: {error}") from error
    problem = _problem(scenario)
    if problem:
        raise ScenarioError(f"{where}: {problem}")
    return scenario


def _problem(scenario: Scenario) -> str:
    """What the structures cannot say: bounds in the right order, weights for each value."""
    if isinstance(scenario.arrivals, Closed):
        wrong = _wrong_size(scenario.arrivals.think_s)
        if wrong:
            return f"arrivals.think_s{wrong}"
    for number, kind in enumerate(scenario.requests):
        sizes = {"prompt": kind.prompt, "output": kind.output, "turns": kind.turns}
        sizes["think_s"] = kind.think_s
        if kind.disconnects is not None:
            sizes["disconnects.after_tokens"] = kind.disconnects.after_tokens
        for name, size in sizes.items():
            wrong = _wrong_size(size)
            if wrong:
                return f"requests[{number}].{name}{wrong}"
    names = [kind.name for kind in scenario.requests]
    if len(set(names)) < len(names):
        return "requests: each kind needs a name of its own"
    return ""


def _wrong_size(size: Size) -> str:
    if isinstance(size, Uniform | LogNormal) and size.low > size.high:
        return f".low: {size.low:g} is above high, {size.high:g}"
    if isinstance(size, Choice) and size.weights is not None:
        if len(size.weights) != len(size.values):
            return f".weights: {len(size.weights)} of them for {len(size.values)} values"
        if not sum(size.weights):
            return ".weights: one must be above 0"
    return ""
