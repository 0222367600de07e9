"""GGUF files of fixtures, written by llama.cpp's own converter, for test_gguf.

    python3 tests/golden/convert_gguf.py LLAMA_CPP

LLAMA_CPP is a checkout of llama.cpp (the source package of llama-cpp-python has one in vendor/llama.cpp). Needs torch
and transformers. The fixtures have no tokenizer, so the files have none either.
"""
import importlib
import json
import pathlib
import sys

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"
MODELS = {"llama-llama3": "llama", "phi3-longrope": "phi", "gpt-oss-mxfp4": "gpt_oss"}  # and the module of the converter that knows them


def main():
    llama_cpp = pathlib.Path(sys.argv[1])
    sys.path[:0] = [str(llama_cpp / "gguf-py"), str(llama_cpp)]
    base = importlib.import_module("conversion.base")
    gguf = importlib.import_module("gguf")
    for name, module in MODELS.items():
        importlib.import_module(f"conversion.{module}")
        folder = FIXTURES / "models" / name
        architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
        kind = base.ModelBase.from_model_architecture(architecture)
        kind.set_vocab = lambda self: None
        kind(folder, gguf.LlamaFileType.MOSTLY_BF16, FIXTURES / "gguf" / f"{name}.gguf").write()


if __name__ == "__main__":
    main()
