#!/usr/bin/env python3
"""Writes a tiny llama model with random weights that llama.cpp loads and serves. Standard library only.

    python3 examples/llama/tiny_model.py target/tiny.gguf

Half a megabyte, the same bytes every time. It has a tokenizer and a chat template, so completions and chats both
work, and what it says is nonsense made of words. It never stops by itself: the first number of every hidden state is a
large constant that no layer changes much, and the output layer turns it into a bonus for words and a malus for
everything else, the end of the text included. So a request's `max_tokens` alone decides how long an answer is.

The format is GGUF version 3: a header, keys and values, a table of tensors, and their numbers, each aligned.
"""

import random
import struct
import sys
from array import array

WIDTH, LAYERS, HEADS, INNER, CONTEXT = 64, 2, 4, 128, 32768
ALIGNMENT = 32

# Types of values in the file, and how each is packed.
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
PACKING = {UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}

# Kinds of tokens, as llama.cpp numbers them.
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

WORDS = """a about after again all also an and any as at back be before both but by can come could day down each
even every few find first for from get give go good great had has have her here him his how if in into is it just
know last let like long look made make many may me more most much must my new next no not now of off old on one only
or other our out over own part place put right said same say see she should show small so some still such take tell
than that the their them then there these they thing think this time to too two under up use very want was way we
well went were what when where which while who will with word work world would year you your""".split()

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def vocabulary():
    """All tokens as (text, score, kind). Bytes are there so that any prompt can be spelled."""
    special = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    spelled = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    space = "\u2581"
    texts = [space] + [chr(code) for code in range(ord("!"), ord("~") + 1)] + [space + word for word in WORDS]
    return special + spelled + [(text, -float(rank), NORMAL) for rank, text in enumerate(texts)]


class Weights:
    """Random numbers, the same in every run."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def matrix(self, rows, columns, spread):
        return array("f", [self.random.gauss(0.0, spread) for _ in range(rows * columns)])

    def steered(self, first_of_each_row, spread):
        """A matrix as wide as the model whose first column is given."""
        numbers = array("f")
        for first in first_of_each_row:
            numbers.append(first)
            numbers.extend(self.matrix(1, WIDTH - 1, spread))
        return numbers


def tensors(tokens, weights):
    """(name, dimensions with the innermost first, numbers), in the order of the file."""
    ones = array("f", [1.0] * WIDTH)
    yield "token_embd.weight", (WIDTH, len(tokens)), weights.steered([4.0] * len(tokens), 1.0)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", (WIDTH,), ones
        # What goes back into the hidden state is kept small, so that its first number survives.
        for name, inputs, outputs, gain in (
            ("attn_q", WIDTH, WIDTH, 1.0),
            ("attn_k", WIDTH, WIDTH, 1.0),
            ("attn_v", WIDTH, WIDTH, 1.0),
            ("attn_output", WIDTH, WIDTH, 0.3),
            ("ffn_gate", WIDTH, INNER, 1.0),
            ("ffn_up", WIDTH, INNER, 1.0),
            ("ffn_down", INNER, WIDTH, 0.3),
        ):
            numbers = weights.matrix(outputs, inputs, gain / inputs**0.5)
            yield f"blk.{layer}.{name}.weight", (inputs, outputs), numbers
    yield "output_norm.weight", (WIDTH,), ones
    bonus = [1.0 if kind == NORMAL else -8.0 for _, _, kind in tokens]
    yield "output.weight", (WIDTH, len(tokens)), weights.steered(bonus, 0.35)


def metadata(tokens):
    """(key, type, value); an array's type is (ARRAY, type of its elements)."""
    texts, scores, kinds = zip(*tokens)
    return [
        ("general.architecture", STRING, "llama"),
        ("general.name", STRING, "tiny"),
        ("general.alignment", UINT32, ALIGNMENT),
        ("llama.vocab_size", UINT32, len(tokens)),
        ("llama.context_length", UINT32, CONTEXT),
        ("llama.embedding_length", UINT32, WIDTH),
        ("llama.block_count", UINT32, LAYERS),
        ("llama.feed_forward_length", UINT32, INNER),
        ("llama.attention.head_count", UINT32, HEADS),
        ("llama.attention.head_count_kv", UINT32, HEADS),
        ("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        ("llama.rope.dimension_count", UINT32, WIDTH // HEADS),
        ("tokenizer.ggml.model", STRING, "llama"),
        ("tokenizer.ggml.tokens", (ARRAY, STRING), texts),
        ("tokenizer.ggml.scores", (ARRAY, FLOAT32), scores),
        ("tokenizer.ggml.token_type", (ARRAY, INT32), kinds),
        ("tokenizer.ggml.unknown_token_id", UINT32, 0),
        ("tokenizer.ggml.bos_token_id", UINT32, 1),
        ("tokenizer.ggml.eos_token_id", UINT32, 2),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
        ("tokenizer.chat_template", STRING, CHAT_TEMPLATE),
    ]


def packed(kind, value):
    if kind == STRING:
        data = value.encode()
        return struct.pack("<Q", len(data)) + data
    return struct.pack(PACKING[kind], value)


def packed_entry(key, kind, value):
    if isinstance(kind, tuple):
        array_kind, element = kind
        head = struct.pack("<IIQ", array_kind, element, len(value))
        return packed(STRING, key) + head + b"".join(packed(element, one) for one in value)
    return packed(STRING, key) + struct.pack("<I", kind) + packed(kind, value)


def padded(data):
    return data + bytes(-len(data) % ALIGNMENT)


def model(seed=1):
    tokens = vocabulary()
    entries = [packed_entry(*entry) for entry in metadata(tokens)]
    table, numbers, count = b"", b"", 0
    for name, dimensions, values in tensors(tokens, Weights(seed)):
        if sys.byteorder == "big":
            values.byteswap()
        shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        table += packed(STRING, name) + shape + struct.pack("<IQ", 0, len(numbers))  # 0: 32-bit floats
        numbers += padded(values.tobytes())
        count += 1
    head = b"GGUF" + struct.pack("<IQQ", 3, count, len(entries))
    return padded(head + b"".join(entries) + table) + numbers


def main(arguments):
    if len(arguments) != 1:
        print("usage: tiny_model.py FILE", file=sys.stderr)
        return 64
    with open(arguments[0], "wb") as file:
        file.write(model())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
