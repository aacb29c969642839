"""Label articles with ONNX Runtime, from a model that was exported before.

broadsheet convert ag-news ag-news.onnx
python examples/onnx_runtime.py ag-news.onnx examples/articles.csv
"""

import csv
import json
import sys

import onnxruntime

import broadsheet


def main(exported: str, source: str, model: str = "ag-news") -> list[str]:
    """Return a label for each article. model: the model that was exported, which makes the inputs from texts."""
    session = onnxruntime.InferenceSession(exported, providers=onnxruntime.get_available_providers())
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    with open(source, newline="", encoding="utf-8") as file:
        texts = [f"{row['title']} {row['text']}" for row in csv.DictReader(file)]
    (scores,) = session.run(["scores"], broadsheet.onnx_inputs(model, texts))
    return [classes[best] for best in scores.argmax(axis=1)]


if __name__ == "__main__":
    print("\n".join(main(*sys.argv[1:])))
