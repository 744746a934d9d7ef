"""What is known of the models: dimension, limits, and how right vectors look.

The three probe texts and BGE-M3's similarities are the constants of vLLM's own test of that model
(tests/models/language/pooling/test_bge_m3.py in vLLM 0.33.0); MiniLM's were measured on its real weights in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

QUERY = "What is BGE M3?"
NEAR = "BGE M3 is an embedding model supporting dense retrieval, lexical matching and multi-vector interaction."
FAR = (
    "BM25 is a bag-of-words retrieval function that ranks a set of documents based "
    "on the query terms appearing in each document"
)


@dataclass(frozen=True)
class Model:
    """One embedding model.

    :param dimension: length of a vector
    :param max_len: tokens a text may have
    :param near, far: cosine similarity of QUERY with NEAR and with FAR; None where nobody measured it
    :param tolerance: how far a similarity may be off (half precision moves the third decimal)
    :param disk_gib: what it takes on disk
    :param sha256: files whose content is publicly known; checked where the fetched model has them
    """

    dimension: int
    max_len: int
    disk_gib: float
    near: float | None = None
    far: float | None = None
    tolerance: float = 0.02
    sha256: dict[str, str] = field(default_factory=dict)


# Files of BAAI/bge-m3 at Hugging Face revision 5617a9f61b028005a4858fdac845db406aefb181, as several public manifests give
# them (read, 2026-11-30). Whether ModelScope's copy holds these very files could not be seen from here; one that holds
# other weights under these names is refused, and one with model.safetensors instead is not affected.
BGE_M3 = Model(
    dimension=1024,
    max_len=8192,
    disk_gib=2.5,
    near=0.6259,
    far=0.3474,
    sha256={
        "pytorch_model.bin": "b5e0ce3470abf5ef3831aa1bd5553b486803e83251590ab7ff35a117cf6aad38",
        "tokenizer.json": "21106b6d7dab2952c1d496fb21d5dc9db75c28ed361a05f5020bbba27810dd08",
        "sentencepiece.bpe.model": "cfc8146abe2a0488e9e2a0c56de7952f7c11ab059eca145a0a727afce0db2865",
    },
)

MODELS: dict[str, Model] = {
    "BAAI/bge-m3": BGE_M3,
    "Xorbits/bge-m3": BGE_M3,
    "sentence-transformers/all-MiniLM-L6-v2": Model(dimension=384, max_len=256, disk_gib=0.2, near=0.4517, far=0.3433),
}
