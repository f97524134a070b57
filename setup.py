"""Metadata and dependencies. Tool settings are in pyproject.toml."""

import configparser
import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (HERE / "transformer_jax" / "__init__.py").read_text()
).group(1)


def entry_points() -> dict[str, list[str]]:
    """Collect the entry points of the core, the family and the corpora."""
    package, parser = HERE / "transformer_jax", configparser.ConfigParser()
    parser.optionxform = str
    parser.read(sorted(package.rglob("entry_points.txt")), encoding="utf-8")
    return {
        group: [f"{name} = {place}" for name, place in parser[group].items()]
        for group in parser.sections()
    }


TEST = [
    "pytest>=8",
    "pytest-xdist>=3.6",
    "pytest-cov>=6",
    "beartype>=0.18",
    "ruff>=0.9",
    "pyright[nodejs]==1.1.414",  # what it finds changes with its version
    "build>=1.2",
    "setuptools>=77",
    "nltk>=3.9.1",
]
TFDS = [
    "tensorflow-datasets>=4.9.8",  # TensorFlow is no part of it
    "tensorflow-metadata>=1.17",  # older ones do not work with this protobuf
    "h5py>=3.12",  # without it TFDS does not know wmt*, glue and others
]
IMAGES = ["scikit-learn>=1.4", "pillow>=10"]  # the digits; image files
HUGGINGFACE = ["tokenizers>=0.20"]  # models whose tokenizer is not SentencePiece
SERVE = [
    "fastapi>=0.120",
    "uvicorn>=0.30",
    "prometheus-client>=0.20",
    "python-multipart>=0.0.18",  # uploads
]
EXPORTED = ["flatbuffers>=24.3"]  # programs of StableHLO as files
ONNX = ["jax2onnx>=0.17.1", "onnxruntime>=1.24"]  # needs orbax-checkpoint below 0.11.37
ARROW = ["pyarrow>=17"]  # Parquet and Arrow files, folders of datasets
DOCS = [
    "sphinx>=8",
    "myst-parser>=4",
    "furo>=2024.8",
    "sphinxcontrib-mermaid>=1.0",
]
BROWSER = ["selenium>=4.20"]  # drives the viewer in tests; a Chromium is needed, too
NOTEBOOKS = ["matplotlib>=3.8", "jupytext>=1.16", "nbclient>=0.10", "ipykernel>=6.29"]

setup(
    name="transformer_jax",
    version=VERSION,
    description='The Transformer of "Attention Is All You Need", in JAX and Flax',
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The transformer_jax authors",
    license="Apache-2.0",
    keywords=["transformer", "jax", "flax", "translation", "deep learning"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    # The configs live at the top level of a checkout and travel inside the package.
    packages=[*find_packages(include=["transformer_jax*"]), "transformer_jax.configs"],
    package_dir={"transformer_jax.configs": "configs"},
    package_data={
        "transformer_jax": [
            "py.typed",
            "entry_points.txt",
            "pretrained/*/*/*",
            "pretrained/*/*/tokenizer/*",
        ],
        "transformer_jax.family": ["*/entry_points.txt", "*/README.md"],
        "transformer_jax.convert": ["entry_points.txt", "translator/*"],
        "transformer_jax.engines": ["entry_points.txt"],
        "transformer_jax.corpora": ["entry_points.txt"],
        "transformer_jax.visualize": ["entry_points.txt"],
        "transformer_jax.serve": ["*.html", "*.css", "*.js"],
        "transformer_jax.visualize.viewer": ["*.html", "*.css", "*.js"],
    },
    install_requires=[
        "jax>=0.10",
        "flax>=0.12.8",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.11.30,<1",  # version 1 replaces the API used here
        "sentencepiece>=0.2.3",
        "fsspec>=2024.6",  # corpora and run directories in object stores
        "safetensors>=0.4",  # the form of a bundle's weights
        "protobuf>=4.25",  # to read a SentencePiece model's pieces
        "sacrebleu>=2.5",
        "sacremoses>=0.1",
        "absl-py>=2.1",
        "ml-collections>=1.1",
        "jaxtyping>=0.3",
        "numpy>=2.0",
        "scipy>=1.13",  # jax needs it, too
    ],
    entry_points={
        "console_scripts": ["transformer-jax=transformer_jax.__main__:main"],
        **entry_points(),
    },
    extras_require={
        "cuda": ["jax[cuda13]>=0.10"],
        "tpu": ["jax[tpu]>=0.10"],
        "huggingface": HUGGINGFACE,
        "arrow": ARROW,
        "ray": ["ray>=2.40"],  # shards on the devices of a cluster
        "gcs": ["gcsfs>=2025.2"],  # run directories on Google Cloud Storage
        "tensorboard": ["tensorboardX>=2.6"],
        "wandb": ["wandb>=0.19"],
        "mlflow": ["mlflow>=2.20"],
        "plots": ["matplotlib>=3.8"],
        "notebooks": NOTEBOOKS,
        "exported": EXPORTED,
        "onnx": ONNX,
        "serve": SERVE,
        "peers": ["ctranslate2>=4.4", "transformers>=4.45", "torch>=2.4"],
        "images": IMAGES,
        "tfds": TFDS,
        "browser": BROWSER,
        "docs": DOCS,
        "test": [
            *TEST,
            *IMAGES,
            *TFDS,
            *NOTEBOOKS,
            *BROWSER,
            *HUGGINGFACE,
            *ARROW,
            *EXPORTED,
            *SERVE,
            "httpx>=0.27",  # FastAPI's client for tests
            "openai>=1.50",  # a client that the service must understand
            "schemathesis>=4",  # asks the service whatever its OpenAPI page allows
        ],
    },
)
