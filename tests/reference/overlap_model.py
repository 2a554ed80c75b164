"""A small cross-encoder in an ONNX file: the share of a sentence's words that the evidence has."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def make_tokenizer(words: str) -> Tokenizer:
    """Make a tokenizer that knows `words`."""
    known = dict.fromkeys([*SPECIAL, *words.lower().split()])
    tokenizer = Tokenizer(models.WordLevel({one: at for at, one in enumerate(known)}, "[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def make_graph(labels: int, shape: tuple[int | str, int | str]) -> bytes:
    """Make a model whose logit of support is 20 x (share of known words - 0.5).

    With two labels, the first one has the opposite logit.
    """
    nodes, constants = [], []

    def add(kind: str, *inputs: str, **attributes: object) -> str:
        name = f"n{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(value: object, kind: type = np.int64) -> str:
        constants.append(numpy_helper.from_array(np.array(value, kind), f"c{len(constants)}"))
        return constants[-1].name

    def number(value: str) -> str:
        return add("Cast", value, to=TensorProto.FLOAT)

    ids, types, mask = "input_ids", "token_type_ids", "attention_mask"
    is_word = add("Greater", ids, constant(3))
    of_sentence = add("And", is_word, add("Equal", types, constant(1)))
    of_evidence = add("And", add("Equal", types, constant(0)), add("Equal", mask, constant(1)))
    equal = add("Equal", add("Unsqueeze", ids, constant([2])), add("Unsqueeze", ids, constant([1])))
    found = add("And", equal, add("Unsqueeze", of_evidence, constant([1])))
    hit = add("ReduceMax", number(found), constant([2]), keepdims=0)
    hits, words = (
        add("ReduceSum", one, constant([1]), keepdims=1)
        for one in (add("Mul", hit, number(of_sentence)), number(of_sentence))
    )
    share = add("Div", hits, add("Max", words, constant([[1.0]], np.float32)))
    logit = add("Mul", add("Sub", share, constant(0.5, np.float32)), constant(20.0, np.float32))
    last = logit if labels == 1 else add("Concat", add("Neg", logit), logit, axis=1)
    nodes.append(helper.make_node("Identity", [last], ["logits"]))
    graph = helper.make_graph(
        nodes,
        "overlap",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, shape)
            for name in (ids, types, mask)
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [shape[0], labels])],
        constants,
    )
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def make_overlap_model(
    folder: Path, words: str, labels: int = 2, shape: tuple[int | str, int | str] = ("b", "s")
) -> Path:
    """Write the model and its tokenizer; return the model's file."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(words).save(str(folder / "tokenizer.json"))
    file = folder / "model.onnx"
    file.write_bytes(make_graph(labels, shape))
    return file
