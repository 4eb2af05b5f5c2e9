"""Two real vLLM replicas on the CPU: a tiny Qwen3 with made-up weights and the demo's tokenizer.

`make test-vllm` makes the environment that they run in and names its interpreter in HEADRACE_VLLM;
without that the tests of it are not collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from client import Answer, ask
from ports import free_port
from running import Document, base_config

from loadtest.replica.options import DEMO_MODEL

PYTHON = os.environ.get("HEADRACE_VLLM")
READY_S = 600.0
MODEL = "tiny"
MAX_MODEL_LEN = 8192
ENDLESS = {"max_tokens": 7000, "ignore_eos": True}
"""Fields of an answer that no test waits for: it takes half a minute, and more beside others."""
KEEP_ALIVE_S = 1
# An engine outlives its server, and would outlive tests that are killed.
_GUARD = """
import os, signal, sys
sys.stdin.read()
try:
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
except ProcessLookupError:
    pass
"""


def make_model(folder: Path, vocabulary: int | None = None) -> Path:
    """The folder of a model that vLLM loads without weights. `vocabulary`: for another tokenizer
    than the demo's."""
    folder.mkdir(exist_ok=True)
    shutil.copy(DEMO_MODEL / "tokenizer.json", folder)
    tokenizer = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    ids = [*tokenizer["model"]["vocab"].values()]
    ids += [token["id"] for token in tokenizer["added_tokens"]]
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": vocabulary or max(ids) + 1,
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "5.16.1",
    }
    (folder / "config.json").write_text(json.dumps(config))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": (DEMO_MODEL / "chat_template.jinja").read_text(),
        "eos_token": "<|im_end|>",
        "model_max_length": MAX_MODEL_LEN,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


class Engine:
    """One vLLM: its server and what that has started, in a process group of their own."""

    def __init__(self, model: Path, *options: str) -> None:
        self.port = free_port()
        self._model = model
        self._options = options
        self._log = model.parent / f"vllm-{self.port}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._doomed = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether it runs, and was not told to end."""
        return not self._doomed and self.process is not None and self.process.poll() is None

    def start(self) -> None:
        assert PYTHON is not None
        self._doomed = False
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_SERVER_DEV_MODE": "1",  # for /pause
        }
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": "tcp://*:0",
            "replay_endpoint": "tcp://*:0",
        }
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self._model), "--served-model-name", MODEL]
        command += ["--load-format", "dummy", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--enforce-eager", "--max-model-len", str(MAX_MODEL_LEN)]
        command += ["--max-num-seqs", "8", "--dtype", "bfloat16", "--block-size", "32"]
        command += ["--num-gpu-blocks-override", "2048", "--enable-prefix-caching"]
        command += ["--enable-prompt-tokens-details", "--seed", "1"]
        command += ["--sse-keep-alive-interval", str(KEEP_ALIVE_S)]
        command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        command += ["--kv-events-config", json.dumps(events), *self._options]
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=self._model.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        command = [sys.executable, "-c", _GUARD, str(self.process.pid)]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def wait_ready(self) -> None:
        give_up_at = time.monotonic() + READY_S
        while True:
            assert self.process is not None
            assert self.process.poll() is None, self._log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                    return
            except OSError:
                assert time.monotonic() < give_up_at, self._log.read_text()[-3000:]
                time.sleep(0.2)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"{name}{{"):
                    return float(line.rpartition(" ")[2])
        raise AssertionError(f"{self.url} has no metric {name}")

    def post(self, path: str) -> None:
        request = urllib.request.Request(f"{self.url}{path}", method="POST")
        with urllib.request.urlopen(request, timeout=30):
            pass

    def terminate(self) -> None:
        """As an orchestrator does: the server alone gets the signal."""
        assert self.process is not None
        self._doomed = True
        self.process.terminate()

    def kill_core(self) -> None:
        """The engine behind the server, which notices and tells its clients."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        names = {int(pid): Path(f"/proc/{pid}/comm") for pid in children.read_text().split()}
        cores = [pid for pid, name in names.items() if name.read_text().startswith("VLLM::Engine")]
        assert len(cores) == 1, {pid: name.read_text() for pid, name in names.items()}
        self._doomed = True
        os.kill(cores[0], signal.SIGKILL)

    def kill(self) -> None:
        """The server and its engine."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)
        if self._guard is not None:
            self._guard.communicate()
            self._guard = None


def configuration(engines: list[Engine], **sections: Any) -> Document:
    """Both engines as replicas `r0` and `r1` of one model, told apart by nothing but load."""
    document = base_config([engine.url for engine in engines], **sections)
    document["models"] = [{**document["models"][0], "name": MODEL, "max_model_len": MAX_MODEL_LEN}]
    document["replicas"] = [{**replica, "model": MODEL} for replica in document["replicas"]]
    return document


WORDS = ("river", "stone", "mill", "wheel", "water", "flow", "bank", "valley", "rain", "spring")


def words(count: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(count))


def chat(text: str, **fields: Any) -> Document:
    """A chat request's body, of which an engine always makes the same."""
    messages = [{"role": "user", "content": text}]
    same = {"seed": 7, "temperature": 0}
    return {"model": MODEL, "messages": messages, "stream": True, **same, **fields}


async def ask_chat(port: int, text: str, **fields: Any) -> Answer:
    return await ask(port, chat(text, **fields))


async def idle(engines: list[Engine], within_s: float = 10.0) -> None:
    """Until no engine runs or queues anything."""
    give_up_at = time.monotonic() + within_s
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    while any(engine.metric(name) for engine in engines for name in names):
        assert time.monotonic() < give_up_at, "the engines still have requests"
        await asyncio.sleep(0.1)
