"""The stages that work on one item, in order: fetch, decode, resize, then the user's module, then postprocess.

stage.py          what a stage is, and how to write your own
inputs.py         the input of a module: ImageInput, BytesInput, TextInput, ArrayInput
module.py         the class that users write
fetch.py          address or path -> bytes
orientation.py    how an image must be rotated
image_header.py   reads the header of an image file: format, size, orientation
decode_limits.py  checks the header against the Plan's limits
stripped_files.py copies of files without the parts that the first picture does not need
decoders.py       the three libraries that decode
decode_nvjpeg.py  JPEGs on an NVIDIA GPU
nvidia_driver.py  whether its driver is here
decode.py         bytes -> image, at the smallest scale that the module's input allows
encode.py         an image file -> a smaller one, for packing
tokenise.py       text -> tokens, and the tokens of a batch -> arrays
images.py         resize, crop and normalise, straight into the batch's buffer
postprocess.py    vectorised non-maximum suppression
emulated.py       stages that only take time
"""
