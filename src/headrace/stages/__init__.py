"""What happens to one item, in the order an image meets it: fetch, decode, resize, then the user's module, then postprocess.

stage.py          what a stage is, and the ways to write one's own
inputs.py         what a module needs: ImageInput, BytesInput, TextInput, ArrayInput
module.py         the class that users write
fetch.py          address or path -> bytes
orientation.py    how a picture is to be turned
image_header.py   what the head of an image file says
decode_limits.py  whether a file may be decoded at all
bare_files.py     copies of files without what their first picture does not need
decoders.py       the libraries that decode, each in the room that it needs
decode.py         bytes -> image, at the smallest scale that the module's input allows
images.py         resize, crop and normalise, straight into the batch's buffer
postprocess.py    vectorised non-maximum suppression
emulated.py       stages that only take time
"""
