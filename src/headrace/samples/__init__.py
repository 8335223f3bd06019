"""Real photographs, labelled images cut from them, and a small model that names them: everything a demonstration needs.

Nothing here belongs to the measuring. It is what the tutorial, the demonstration and the tests measure with, so that they
need no network and no data of the user's. In reading order:

    catalogue     the photographs, each with its two regions that share no pixel: one to train on, one to score on
    messy         what goes wrong with real images: blur, low light, orientation tags, CMYK, truncation, ...
    labels        the record of one image, the manifest of a folder, and `labels.jsonl`
    generator     cuts images from the photographs, the same bytes for the same seed
    photographs/  the files, with `LICENCES.md`
    models/       `scenes.onnx`, which names the photograph a crop was cut from, and its card `scenes.md`

Importing this package loads none of them; `from headrace.samples.generator import make` is where to begin.
"""
