"""ResNet-18 and MobileNetV2 in plain PyTorch: residual sums and depthwise convolutions.

Both are fully convolutional up to a mean over the picture, so one network takes pictures of any size of 32 pixels or more.

Input float32 (batch, 3, height, width), RGB, normalized; output float32 (batch, classes), logits.

References:
    K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1.
    M. Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018, table 2.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.models import BLOCKS

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and stride of ResNet-18's stages, each of two blocks."""


def _convolution(channels_in: int, channels: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels_in, channels, size, stride, size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(channels)]


class _BasicBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(channels_in, channels, 3, stride), nn.ReLU(), *_convolution(channels, channels, 3)
        )
        self.shortcut = nn.Sequential(
            *(_convolution(channels_in, channels, 1, stride) if stride > 1 or channels_in != channels else ())
        )
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


class _InvertedResidual(nn.Module):
    def __init__(self, channels_in: int, channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = channels_in * expansion
        widening = [*_convolution(channels_in, width, 1), nn.ReLU6()] if expansion > 1 else []
        self.body = nn.Sequential(
            *widening,
            *_convolution(width, width, 3, stride, groups=width),
            nn.ReLU6(),
            *_convolution(width, channels, 1),
        )
        self.has_sum = stride == 1 and channels_in == channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.has_sum else self.body(x)


class Network(nn.Module):
    """Features, their mean over the picture, and a linear layer."""

    def __init__(self, features: nn.Sequential, channels: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.features = features
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(channels, classes))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.classifier(self.features(image).mean(dim=(2, 3)))


def resnet18(classes: int) -> Network:
    """Return ResNet-18 with random weights: 11.2 million, 1.8 billion multiplications at 224 pixels."""
    layers: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels_in = 64
    for channels, stride in _STAGES:
        layers += [_BasicBlock(channels_in, channels, stride), _BasicBlock(channels, channels, 1)]
        channels_in = channels
    return Network(nn.Sequential(*layers), channels_in, classes, 0.0)


def mobilenetv2(classes: int) -> Network:
    """Return MobileNetV2 with random weights: 2.2 million, 0.3 billion multiplications at 224 pixels."""
    layers: list[nn.Module] = [*_convolution(3, 32, 3, 2), nn.ReLU6()]
    channels_in = 32
    for expansion, channels, repeats, first_stride in BLOCKS:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            layers.append(_InvertedResidual(channels_in, channels, expansion, stride))
            channels_in = channels
    return Network(nn.Sequential(*layers, *_convolution(channels_in, 1280, 1), nn.ReLU6()), 1280, classes, 0.2)
