"""headrace on models that others trained: six packages from PyPI that ship ONNX files, each in a pipeline of its own.

packages.py    the packages, pinned, in a virtual environment of their own
items.py       files to work on: photographs, rendered text, documents, sound
cases.py       the record of a package, and which there are
boxes.py       nudenet: a YOLOv8n detector, its raw head of boxes and classes
lines.py       rapidocr: PP-OCRv4's detector, direction classifier and recogniser in one chained pipeline
types.py       magika: the type of a file from its bytes, whole numbers in
speech.py      Silero VAD: three inputs, a state that goes from call to call
turned.py      which way up a document is
captchas.py    a CRNN with a CTC head, time before items
planted.py     models that are broken on purpose, and honest twins of them
worker.py      what runs in that environment: makes items, asks each package's own code, plants defects
__main__.py    the commands of headrace on each, counted

python -m benchmarks.real_models [--quick] [--json] [--write]
"""
