import numpy as np
import pytest

from headrace.base.errors import EngineError
from headrace.base.protocols import TensorSpec
from headrace.profiler.layers.feeds import make_feed

IMAGE = TensorSpec("image", "tensor(float)", ("batch", 3, 4, 4))
IDS = TensorSpec("ids", "tensor(int64)", ("batch", 7))


def test_inputs_are_cut_or_repeated_to_the_batch() -> None:
    """Five rows serve a batch of 2 and one of 12; the array itself is left alone."""
    images = np.arange(5 * 48, dtype=np.float32).reshape(5, 3, 4, 4)
    assert np.array_equal(make_feed([IMAGE], 2, images)["image"], images[:2])
    twelve = make_feed([IMAGE], 12, images)["image"]
    assert twelve.shape == (12, 3, 4, 4)
    assert np.array_equal(twelve[5:10], images)


def test_made_up_inputs_have_the_models_types_and_shapes() -> None:
    """Normal numbers for fractions, the same each time; zeros for whole numbers, which may be indices."""
    feed = make_feed([IMAGE, IDS], 6, None)
    assert (feed["image"].shape, feed["image"].dtype) == ((6, 3, 4, 4), np.float32)
    assert 0.5 < feed["image"].std() < 1.5
    assert np.array_equal(feed["image"], make_feed([IMAGE], 6, None)["image"])
    assert (feed["ids"].shape, feed["ids"].dtype, feed["ids"].any()) == ((6, 7), np.int64, False)


def test_several_inputs_are_given_by_name() -> None:
    """Each is fitted to the batch; a scalar stays as it is."""
    scale = TensorSpec("scale", "tensor(float16)", ())
    given = {"ids": np.ones((1, 7), np.int64), "scale": np.float16(2)}
    feed = make_feed([IDS, scale], 3, given)
    assert feed["ids"].shape == (3, 7)
    assert feed["scale"] == 2


@pytest.mark.parametrize(
    ("specs", "batch_size", "inputs", "says"),
    [
        ([IMAGE], 2, np.zeros((2, 3, 4, 4)), "takes tensor.float., given was float64"),
        ([IMAGE], 2, np.zeros((2, 3, 5, 4), np.float32), "5 for 4"),
        ([IMAGE], 2, np.zeros((3, 4, 4), np.float32), "takes 4 axes"),
        ([IMAGE], 2, np.zeros((0, 3, 4, 4), np.float32), "no rows"),
        ([IMAGE, IDS], 2, np.zeros((2, 3, 4, 4), np.float32), "2 inputs and was given one array"),
        ([IMAGE], 2, {"picture": np.zeros((2, 3, 4, 4), np.float32)}, "inputs are image .*given were picture"),
        ([TensorSpec("x", "tensor(float)", (1, 8))], 4, None, "batches of 1 only .*asked for was 4"),
        ([TensorSpec("x", "tensor(float)", (1, 8))], 4, np.zeros((4, 8), np.float32), "batches of 1 only"),
        ([TensorSpec("x", "tensor(float)", ("n", "length"))], 4, None, "free axis 'length'"),
        ([TensorSpec("x", "tensor(string)", ("n",))], 4, None, "no NumPy array holds"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    specs: list[TensorSpec], batch_size: int, inputs: object, says: str
) -> None:
    """The error names the input, what it takes and what it was given."""
    with pytest.raises(EngineError, match=says):
        make_feed(specs, batch_size, inputs)  # type: ignore[arg-type]
