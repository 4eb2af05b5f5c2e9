"""Two real vLLM replicas on the CPU: a tiny Qwen3 with made-up weights and the demo's tokenizer.

`make test-vllm` makes the environment that they run in and names its interpreter in HEADRACE_VLLM;
without that the tests of it are not collected.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from running import Document, base_config, free_port

from loadtest.replica.options import DEMO_MODEL

PYTHON = os.environ.get("HEADRACE_VLLM")
READY_S = 300.0
MODEL = "tiny"
MAX_MODEL_LEN = 2048


def make_model(folder: Path) -> Path:
    """The folder of a model that vLLM loads without weights."""
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
        "vocab_size": max(ids) + 1,
        "max_position_embeddings": 4096,
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
        "model_max_length": 4096,
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

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert PYTHON is not None
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
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
        command += ["--num-gpu-blocks-override", "512", "--enable-prefix-caching"]
        command += ["--enable-prompt-tokens-details", "--seed", "1"]
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

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """The server and its engine."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)
            self.process.wait(60)


def configuration(engines: list[Engine], **sections: Any) -> Document:
    """Both engines as replicas `r0` and `r1` of one model, told apart by nothing but load."""
    document = base_config([engine.url for engine in engines], **sections)
    document["models"] = [{**document["models"][0], "name": MODEL, "max_model_len": MAX_MODEL_LEN}]
    document["replicas"] = [{**replica, "model": MODEL} for replica in document["replicas"]]
    return document


async def idle(engines: list[Engine], within_s: float = 10.0) -> None:
    """Until no engine runs or queues anything."""
    give_up_at = time.monotonic() + within_s
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    while any(engine.metric(name) for engine in engines for name in names):
        assert time.monotonic() < give_up_at, "the engines still have requests"
        await asyncio.sleep(0.1)
