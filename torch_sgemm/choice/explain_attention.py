"""``explain_attention``: which kernel a call of ``attention`` takes, and why not the other.

The same for a call's gradients.
"""

from torch import Tensor

from torch_sgemm.choice.explain import Device, Explanation, Verdict
from torch_sgemm.torch_ops.attention import checked, is_built, refused_shape
from torch_sgemm.torch_ops.library import operators
from torch_sgemm.torch_ops.ops import check_tensors

_MODEL = Device()  # predicts times where there is no GPU


def _reason(device: Device, given: bool, shape: tuple[int, ...]) -> str:
    """Returns why the split kernel can't take the call, or ``""``."""
    if device.type != "cuda" or device.arch != 90:
        return "needs a GPU of compute capability 9.0"
    if not given and not is_built():
        return "not in this build"
    return refused_shape(shape)


def explain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    kernel: str = "auto",
    device: Device | None = None,
    backward: bool = False,
) -> Explanation:
    """Explains which kernel :func:`torch_sgemm.attention` takes, and why; nothing runs.

    Args:
        query, key, value: float32, (B, H, L, D), (B, G, S, D) and (B, G, S, Dv), any strides; meta
            tensors with ``device``.
        attn_mask: bool or float32, of a shape that broadcasts to (B, H, L, S).
        is_causal, scale, enable_gqa: as of :func:`torch_sgemm.attention`.
        kernel: ``"auto"``, ``"split"`` or ``"aten"``.
        device: the device to choose for; unless given, the tensors'.
        backward: True explains the kernels of the gradients instead.

    Returns:
        An :class:`Explanation` with the rows ``split`` and ``aten``; their seconds are predicted,
        without a GPU for an H200.

    Raises:
        TypeError: an operand or the mask is no tensor.
        RuntimeError: the arguments are wrong, or ``kernel`` is ``"split"`` and can't take them.
    """
    masks = {} if attn_mask is None else {"attn_mask": attn_mask}
    check_tensors("torch_sgemm.explain_attention", query=query, key=key, value=value, **masks)
    call = checked(query, key, value, attn_mask, is_causal, scale, enable_gqa, kernel)
    if device is not None and not isinstance(device, Device):
        raise RuntimeError(
            f"torch_sgemm.explain_attention: argument 'device' is {device!r}; accepted: "
            "torch_sgemm.Device(...)"
        )
    on = device or Device.of(query.device)
    reason = _reason(on, device is not None, call.shape)
    if kernel == "split" and reason:
        raise RuntimeError(
            f"torch_sgemm.explain_attention: argument 'kernel' is 'split': {reason}; accepted: "
            "'auto', 'aten'"
        )
    seconds = 0.0, 0.0
    if not refused_shape(call.shape):
        numbers = (on if on.type == "cuda" else _MODEL)._numbers()
        masked = attn_mask is not None
        args = call.shape, is_causal, masked, numbers
        if backward:
            seconds = operators._attention_gradients_seconds(*args)
        else:
            seconds = operators._attention_seconds(*args)
    chosen = kernel
    if kernel == "auto":
        chosen = "split" if not reason and seconds[0] < seconds[1] else "aten"
    asked = (chosen,) if kernel != "auto" else ("split", "aten")
    split = reason or ("" if "split" in asked else "not asked for")
    aten = "" if "aten" in asked else "not asked for"
    rows = ("split", "split", None, seconds[0], split), ("aten", "", None, seconds[1], aten)
    return Explanation(chosen, tuple(Verdict(*row) for row in rows))
