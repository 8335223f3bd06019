"""Trains the model of `headrace.samples` that names the photograph a crop was cut from, and writes `scenes.onnx`.

Run from the repository's root, five to ten minutes on one core:

    pip install -e '.[train]'
    python tools/train_scenes.py --seed 1 --output src/headrace/samples/models/scenes.onnx
    python tools/score_scenes.py

How this works: crops are cut from the training region of every photograph, decoded once and kept at a short side of 256.
Each epoch sees every crop once, changed at random: part and scale, flip, rotation, colour, light, blur, grey. The network
is a small MobileNet v1 without the width of the original: it has to tell eleven pictures apart, not a thousand classes.
Batch normalisation is folded into the convolutions, and the graph is written node by node, so that the file has neither
an exporter's names nor its dependence on versions. One seed decides everything, on one machine with one thread count.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import nn
from torch.nn import functional

from headrace.samples.catalogue import NAMES, SCENES_MODEL_PATH
from headrace.samples.generator import crops

IMAGE_PIXELS = 224
CACHE_PIXELS = 256
EARLY_PIXELS = 160
"""Width of the views in the first two thirds of the epochs, which halves their cost."""
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

STEM_CHANNELS = 16
BLOCKS = ((32, 2), (48, 1), (96, 2), (96, 1), (160, 2), (160, 1), (160, 1))
"""Output channels and stride of every depthwise-separable block."""


class SceneNet(nn.Module):
    """Names scenes.

    Input float32 (batch, 3, 224, 224), RGB, normalised; output float32 (batch, num_scenes), logits.
    """

    def __init__(self, num_scenes: int) -> None:
        super().__init__()
        layers = _convolution(3, STEM_CHANNELS, kernel=3, stride=2, groups=1)
        channels = STEM_CHANNELS
        for output_channels, stride in BLOCKS:
            layers += _convolution(channels, channels, kernel=3, stride=stride, groups=channels)
            layers += _convolution(channels, output_channels, kernel=1, stride=1, groups=1)
            channels = output_channels
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, num_scenes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        features = self.features(image).mean(dim=(2, 3))
        return self.classifier(functional.dropout(features, 0.2, self.training))


def _convolution(channels_in: int, channels_out: int, *, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    convolution = nn.Conv2d(
        channels_in, channels_out, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
    )
    return [convolution, nn.BatchNorm2d(channels_out), nn.ReLU(inplace=True)]


def load_crops(count: int, seed: int) -> tuple[list[Image.Image], torch.Tensor]:
    """Return crops of the training region with a short side of 256, and their labels.

    Half of them are scaled with a filter against aliasing, as Pillow does, half without, as OpenCV does: the model must
    not depend on which of them a pipeline uses.
    """
    images, labels = [], []
    for number, crop in enumerate(crops(count, seed, split="train")):
        with Image.open(io.BytesIO(crop.data)) as decoded:
            images.append(_shrink(decoded.convert("RGB"), antialias=number % 2 == 0))
        labels.append(NAMES.index(str(crop.label)))
    return images, torch.tensor(labels)


def _shrink(image: Image.Image, *, antialias: bool) -> Image.Image:
    factor = CACHE_PIXELS / min(image.size)
    size = (round(image.height * factor), round(image.width * factor))
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float()
    scaled = functional.interpolate(pixels, size=size, mode="bilinear", antialias=antialias)
    return Image.fromarray(scaled[0].round().clamp(0, 255).byte().permute(1, 2, 0).numpy())


def augment(image: Image.Image, pixels: int, rng: random.Random) -> Image.Image:
    """Return a square view of the crop, `pixels` wide, changed at random."""
    if rng.random() < 0.2:
        image = image.rotate(rng.uniform(-30.0, 30.0), resample=Image.Resampling.BILINEAR)
    image = image.resize((pixels, pixels), Image.Resampling.BILINEAR, box=_choose_part(image, rng))
    if rng.random() < 0.5:
        image = ImageOps.mirror(image)
    if rng.random() < 0.2:
        image = image.transpose(rng.choice((Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_270)))
    return _change_colour(image, rng)


def _choose_part(image: Image.Image, rng: random.Random) -> tuple[float, float, float, float]:
    """Return a box of 25 to 100 % of the short side's square, of aspect ratio 3:4 to 4:3."""
    side = min(image.size) * rng.uniform(0.25, 1.0) ** 0.5
    stretch = rng.uniform(0.75, 4 / 3) ** 0.5
    width, height = min(side * stretch, image.width), min(side / stretch, image.height)
    left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
    return (left, top, left + width, top + height)


def _change_colour(image: Image.Image, rng: random.Random) -> Image.Image:
    if rng.random() < 0.15:
        image = image.convert("L").convert("RGB")
    image = _change_tint(image, rng)
    image = ImageEnhance.Color(image).enhance(rng.uniform(0.6, 1.4))
    image = ImageEnhance.Contrast(image).enhance(rng.uniform(0.7, 1.3))
    image = ImageEnhance.Brightness(image).enhance(
        rng.uniform(0.15, 0.5) if rng.random() < 0.15 else rng.uniform(0.7, 1.3)
    )
    if rng.random() < 0.2:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.5, 2.5)))
    return image


def _change_tint(image: Image.Image, rng: random.Random) -> Image.Image:
    """Return the image under a light of another colour: each channel times 0.85 to 1.15."""
    table = [
        min(255, round(value * gain)) for gain in [rng.uniform(0.85, 1.15) for _ in range(3)] for value in range(256)
    ]
    return image.point(table)


def normalise(images: list[Image.Image]) -> torch.Tensor:
    """Return float32 (batch, 3, height, width), RGB, ImageNet's mean and standard deviation taken out."""
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2).float() / 255
    return (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def train(images: list[Image.Image], labels: torch.Tensor, *, epochs: int, batch_size: int, seed: int) -> SceneNet:
    """Return the trained network, in evaluation mode."""
    rng = random.Random(seed)
    model = SceneNet(len(NAMES)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
    num_batches = len(images) // batch_size
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=epochs * num_batches)
    begin_seconds = time.monotonic()
    for epoch in range(epochs):
        pixels = EARLY_PIXELS if epoch < epochs * 2 // 3 else IMAGE_PIXELS
        loss = _run_epoch(model, optimizer, schedule, images, labels, batch_size, pixels, rng)
        elapsed_seconds = time.monotonic() - begin_seconds
        print(f"epoch {epoch + 1}/{epochs}  loss {loss:.3f}  {elapsed_seconds:.0f} s", file=sys.stderr, flush=True)
    return model.eval()


def _run_epoch(
    model: SceneNet,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    images: list[Image.Image],
    labels: torch.Tensor,
    batch_size: int,
    pixels: int,
    rng: random.Random,
) -> float:
    """Return the mean loss of one pass over the crops; the last incomplete batch is left out."""
    order = rng.sample(range(len(images)), len(images))
    losses = []
    model.train()
    for begin in range(0, len(order) - batch_size + 1, batch_size):
        chosen = order[begin : begin + batch_size]
        batch = normalise([augment(images[index], pixels, rng) for index in chosen])
        logits = model(batch.contiguous(memory_format=torch.channels_last))
        loss = functional.cross_entropy(logits, labels[chosen], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def export(model: SceneNet, path: Path) -> None:
    """Write the network as ONNX with batch normalisation folded in."""
    nodes, weights, flow = [], [], "image"
    for number, (convolution, norm) in enumerate(_pairs(model)):
        fused = torch.nn.utils.fusion.fuse_conv_bn_eval(convolution, norm)
        names = [f"conv{number}.weight", f"conv{number}.bias"]
        weights += [_tensor(fused.weight, names[0]), _tensor(fused.bias, names[1])]
        kernel, stride, padding = fused.kernel_size[0], fused.stride[0], fused.padding[0]
        nodes.append(
            helper.make_node(
                "Conv",
                [flow, *names],
                [f"conv{number}"],
                name=f"conv{number}",
                kernel_shape=[kernel] * 2,
                strides=[stride] * 2,
                pads=[padding] * 4,
                group=fused.groups,
            )
        )
        nodes.append(helper.make_node("Relu", [f"conv{number}"], [f"relu{number}"], name=f"relu{number}"))
        flow = f"relu{number}"
    nodes += [
        helper.make_node("GlobalAveragePool", [flow], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["features"], name="flatten"),
        helper.make_node("Gemm", ["features", "fc.weight", "fc.bias"], ["logits"], name="classifier", transB=1),
    ]
    weights += [_tensor(model.classifier.weight, "fc.weight"), _tensor(model.classifier.bias, "fc.bias")]
    onnx.save(_assemble(nodes, weights), path)


def _pairs(model: SceneNet) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    layers = [layer for layer in model.features if not isinstance(layer, nn.ReLU)]
    return list(zip(layers[::2], layers[1::2], strict=True))


def _tensor(values: torch.Tensor, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(values.detach().contiguous().numpy(), name)


def _assemble(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto]) -> onnx.ModelProto:
    """Return the checked model: opset 17, dynamic batch, the names of the scenes in its metadata."""
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, IMAGE_PIXELS, IMAGE_PIXELS])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(NAMES)])
    graph = helper.make_graph(nodes, "scenes", [image], [logits], initializer=weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"names": json.dumps(NAMES), "mean": json.dumps(MEAN), "std": json.dumps(STD)})
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train and write the model."""
    parser = argparse.ArgumentParser(description="Train the scenes model of headrace.samples.")
    parser.add_argument("--output", type=Path, default=SCENES_MODEL_PATH, help="the ONNX file to write")
    parser.add_argument("--seed", type=int, default=1, help="decides crops, weights and augmentation")
    parser.add_argument("--count", type=int, default=1320, help="crops to train on")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1, help="the result depends on it in the last digits")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(arguments.seed)
    images, labels = load_crops(arguments.count, arguments.seed)
    model = train(images, labels, epochs=arguments.epochs, batch_size=arguments.batch_size, seed=arguments.seed)
    export(model, arguments.output)
    print(arguments.output)


if __name__ == "__main__":
    main()
