import pytest

from headrace.profiler.layers.operations import MOVES, Tensor, Work, count


def f32(*shape: int) -> Tensor:
    """Return a float32 tensor."""
    return Tensor("float32", shape)


def u8(*shape: int) -> Tensor:
    """Return a uint8 tensor."""
    return Tensor("uint8", shape)


def test_convolution_by_hand() -> None:
    """ResNet's first layer: 7x7x3 products for each of 64 x 112 x 112 outputs, 118 million multiply-adds."""
    work = count("Conv", [f32(1, 3, 224, 224), f32(64, 3, 7, 7), f32(64)], [f32(1, 64, 112, 112)])
    assert work.flops == 2 * 118_013_952
    assert work.num_bytes == 4 * (3 * 224 * 224 + 64 * 3 * 49 + 64 + 64 * 112 * 112)


def test_groups_divide_the_products_of_a_convolution() -> None:
    """A depthwise convolution takes 9 products an output; with groups the weights have in / groups channels."""
    assert count("Conv", [f32(2, 32, 56, 56), f32(32, 1, 3, 3)], [f32(2, 32, 56, 56)]).flops == 2 * 9 * 2 * 32 * 56 * 56
    assert count("Conv", [f32(1, 64, 8, 8), f32(32, 16, 1, 1)], [f32(1, 32, 8, 8)]).flops == 2 * 16 * 32 * 64


def test_one_and_three_dimensional_convolutions() -> None:
    """The kernel may have any number of axes."""
    assert count("Conv", [f32(1, 4, 100), f32(8, 4, 5)], [f32(1, 8, 96)]).flops == 2 * 4 * 5 * 8 * 96
    assert count("Conv", [f32(1, 2, 8, 8, 8), f32(3, 2, 3, 3, 3)], [f32(1, 3, 6, 6, 6)]).flops == 2 * 2 * 27 * 3 * 216


def test_transposed_convolution_counts_by_its_input() -> None:
    """Each input element is multiplied with every weight that leads from its channel."""
    work = count("ConvTranspose", [f32(1, 16, 10, 10), f32(16, 8, 2, 2)], [f32(1, 8, 20, 20)])
    assert work.flops == 2 * 1600 * 8 * 4


@pytest.mark.parametrize(
    ("operator", "inputs", "out", "macs"),
    [
        ("Gemm", [f32(4, 1280), f32(1000, 1280), f32(1000)], f32(4, 1000), 4 * 1280 * 1000),
        ("Gemm", [f32(1280, 4), f32(1280, 1000)], f32(4, 1000), 4 * 1280 * 1000),  # transA
        ("Gemm", [f32(4, 1280), f32(1000)], f32(4, 1000), 4 * 1280 * 1000),  # packed weights left out
        ("MatMul", [f32(2, 12, 197, 64), f32(2, 12, 64, 197)], f32(2, 12, 197, 197), 24 * 197 * 197 * 64),
        ("MatMul", [f32(64), f32(64, 10)], f32(10), 640),
        ("FusedMatMul", [f32(64, 197), f32(64, 30)], f32(197, 30), 64 * 197 * 30),  # transA
        ("MatMulInteger", [u8(3, 5), u8(5, 7)], Tensor("int32", (3, 7)), 105),
        ("QLinearConv", [u8(1, 3, 8, 8), f32(), u8(), u8(4, 3, 3, 3), f32(), u8()], u8(1, 4, 8, 8), 27 * 4 * 64),
        ("ConvInteger", [u8(1, 3, 8, 8), u8(4, 3, 3, 3)], Tensor("int32", (1, 4, 8, 8)), 27 * 4 * 64),
        ("LSTM", [f32(10, 2, 8), f32(1, 64, 8), f32(1, 64, 16)], f32(10, 1, 2, 16), 10 * 2 * 64 * (8 + 16)),
    ],
)
def test_products_by_hand(operator: str, inputs: list[Tensor], out: Tensor, macs: int) -> None:
    """Each product is two operations per multiply-add, whichever way its matrices lie."""
    assert count(operator, inputs, [out]).flops == 2 * macs


def test_attention_by_hand() -> None:
    """Projection to three matrices, then scores and weighted sum: BERT's base layer, 197 tokens of 768."""
    work = count("Attention", [f32(1, 197, 768), f32(768, 2304), f32(2304)], [f32(1, 197, 768)])
    assert work.flops == 2 * 197 * 768 * 2304 + 2 * 2 * 197 * 197 * 768


def test_einsum_counts_by_its_equation() -> None:
    """A batched product: one multiply-add per combination of indices; without the equation nothing is known."""
    inputs, out = [f32(2, 3, 5), f32(2, 5, 7)], [f32(2, 3, 7)]
    assert count("Einsum", inputs, out, {"equation": "bij,bjk->bik"}).flops == 2 * 2 * 3 * 5 * 7
    assert count("Einsum", inputs, out).flops is None


def test_pooling_needs_its_kernel() -> None:
    """The shapes do not tell the kernel's size; without it the count is unknown and not 0."""
    shapes = [f32(1, 64, 112, 112)], [f32(1, 64, 56, 56)]
    assert count("MaxPool", *shapes, {"kernel_shape": [3, 3]}).flops == 9 * 64 * 56 * 56
    assert count("MaxPool", *shapes).flops is None
    assert count("GlobalAveragePool", [f32(1, 64, 7, 7)], [f32(1, 64, 1, 1)]).flops == 64 * 49


def test_elementwise_and_normalization() -> None:
    """An activation counts one per element; a sum of four tensors three."""
    x = f32(2, 10)
    assert count("Relu", [x], [x]).flops == 20
    assert count("Sum", [x] * 4, [x]).flops == 60
    assert count("Softmax", [x], [x]).flops == 100
    assert count("ReduceMean", [x], [f32(2, 1)]).flops == 20


def test_an_unknown_operator_is_none_and_its_bytes_are_known() -> None:
    """None is not 0; what goes in and out is known all the same."""
    assert count("NonMaxSuppression", [f32(10)], [f32(5)]) == Work(None, 60.0)


def test_moving_data_is_zero_operations() -> None:
    """A transposition reads and writes; a view does nothing; a gather moves what it takes and not the table."""
    assert count("Transpose", [f32(3, 4)], [f32(4, 3)]) == Work(0.0, 96.0)
    assert count("Reshape", [f32(3, 4), Tensor("int64", (1,))], [f32(12)]) == Work(0.0, 0.0)
    assert count("Gather", [f32(30_000, 768), Tensor("int64", (5,))], [f32(5, 768)]) == Work(0.0, 2 * 4 * 5 * 768.0)
    assert all(count(operator, [f32(2)], [f32(2)]).flops == 0 for operator in MOVES)


def test_bytes_follow_the_type() -> None:
    """Half precision takes two bytes, four-bit weights half of one; text has no fixed size."""
    assert Tensor("float16", (3,)).num_bytes == 6
    assert Tensor("int4", (3,)).num_bytes == 1.5
    assert Tensor("string", (3,)).num_bytes is None
    assert count("Add", [Tensor("string", (3,)), f32(3)], [f32(3)]).num_bytes is None


def test_too_few_shapes_are_unknown() -> None:
    """A profile that leaves a tensor out gives no count rather than a wrong one."""
    assert count("Conv", [f32(1, 3, 8, 8)], [f32(1, 4, 8, 8)]).flops is None
    assert count("Conv", [], []).flops is None


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    """Adding work keeps None apart from 0."""
    assert Work(1.0, 2.0) + Work(3.0, None) == Work(4.0, None)
    assert Work(None, 0.0) + Work(3.0, 4.0) == Work(None, 4.0)
