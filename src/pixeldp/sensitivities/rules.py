"""One rule for each operation that may stand before the noise; everything else is refused.

A rule turns a captured operation on one value into a piece: a linear operator, or the table of one
that is not linear. Arguments that do not depend on the input, such as weights, are given as values.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from pixeldp.errors import UnsupportedLayer
from pixeldp.graphs import describe, named_arguments, run_node
from pixeldp.sensitivities import tables
from pixeldp.sensitivities.activations import constant_of
from pixeldp.sensitivities.images import IMAGE_RULES
from pixeldp.sensitivities.linear import Dense, Diagonal, Rearranged
from pixeldp.sensitivities.pieces import Nonlinear, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from pixeldp.sensitivities.pieces import Constants, Piece

aten = torch.ops.aten

# Pairs of categories that are compared; for more, twice the distance from the mean is taken.
_CATEGORIES = 4096

_BATCH_OF_IMAGES = 4


def piece_of(node: fx.Node, value: fx.Node, constants: Constants) -> Piece:
    """Return the piece of one operation on ``value``, or refuse it by name."""
    _check_numbers(node)
    _check_rows(node, value)
    if node.target in _MOVING:
        return _moved(node, value, constants)
    _check_roles(node, value, constants)
    constant = constant_of(node, constants)
    if constant is not None:
        return Nonlinear(
            tables.contraction(constant, math.prod(shape_of(node))),
            f"elementwise, slopes up to {constant:.6g}",
            "largest derivative",
        )
    rule = _RULES.get(node.target) or IMAGE_RULES.get(node.target)
    if rule is None:
        raise UnsupportedLayer(
            f"no proven sensitivity for {describe(node)}{_reason(node)}; place the noise before "
            "it, or on the input (after=None)"
        )
    piece: Piece = rule(node, value, constants)
    return piece


def _check_rows(node: fx.Node, value: fx.Node) -> None:
    """Refuse what could carry something from one input of the batch to another."""
    before, after = value.meta["val"], node.meta["val"]
    before = before[0] if isinstance(before, (tuple, list)) else before
    after = after[0] if isinstance(after, (tuple, list)) else after
    same = after.dim() > 0 and before.dim() > 0 and str(before.shape[0]) == str(after.shape[0])
    if not same or _touches_rows(node, before.dim()):
        raise UnsupportedLayer(
            f"{describe(node)} moves coordinates between the inputs of a batch, which voids the "
            "bound for each of them; keep the first dimension"
        )


def _check_numbers(node: fx.Node) -> None:
    """Refuse complex and plain numbers: every rule is about tensors of real ones."""
    made = node.meta["val"]
    made = made[0] if isinstance(made, (tuple, list)) else made
    if not isinstance(made, torch.Tensor) or made.is_complex():
        kind = "complex numbers" if isinstance(made, torch.Tensor) else "a plain number"
        raise UnsupportedLayer(
            f"no proven sensitivity for {describe(node)}: it makes {kind}; place the noise before "
            "it"
        )


def _check_roles(node: fx.Node, value: fx.Node, constants: Constants) -> None:
    """Refuse an operation on ``value`` in another role than its rule is about, as a bias, say."""
    role = _ROLES.get(node.target, 0)
    if node.target not in _EITHER_WAY and (len(node.args) <= role or node.args[role] is not value):
        raise UnsupportedLayer(
            f"no proven sensitivity for {describe(node)} where a weight or a bias depends on the "
            "input; place the noise before it"
        )
    if any(arg is not value and arg not in constants for arg in node.all_input_nodes):
        raise UnsupportedLayer(
            f"no proven sensitivity for {describe(node)}, which depends on the number of inputs"
        )


def _touches_rows(node: fx.Node, dims: int) -> bool:
    """Whether an operation that names dimensions names the first one."""
    if node.target not in _NAMES_DIMENSIONS:
        return False
    given = named_arguments(node)
    if node.target is aten.permute.default:
        return int(given["dims"][0]) % dims != 0
    if node.target is aten.slice.Tensor and int(given.get("dim", 0)) % dims == 0:
        return given.get("start") not in (0, None) or given.get("step", 1) != 1
    if node.target is aten.slice.Tensor:
        return False
    if node.target is aten.index.Tensor:
        return given["indices"][0] is not None
    named = [given[name] for name in ("dim", "dim0", "dim1", "dims") if name in given]
    flat = [d for entry in named for d in (entry if isinstance(entry, (list, tuple)) else [entry])]
    return not flat or any(int(d) % dims == 0 for d in flat)


_NAMES_DIMENSIONS = {
    aten.flip.default,
    aten.index.Tensor,
    aten.permute.default,
    aten.roll.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.transpose.int,
}

_KEEPING = {
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
}

_SPLITTING = {aten.split.Tensor, aten.split_with_sizes.default}

_RESHAPING = {
    aten._unsafe_view.default,  # noqa: SLF001 - the name of the operation
    aten.flatten.using_ints,
    aten.reshape.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unflatten.int,
    aten.unsqueeze.default,
    aten.view.default,
}

# Which argument a rule is about, where it is not the first.
_ROLES: dict[Any, int] = {aten.addmm.default: 1, aten.embedding.default: 1}

# Operations whose rules say themselves what either argument does.
_EITHER_WAY = {
    aten.add.Tensor,
    aten.div.Tensor,
    aten.mul.Tensor,
    aten.rsub.Scalar,
    aten.sub.Tensor,
}

# Operations that move coordinates to other places, each to at most one, or drop them.
_MOVING = {*_NAMES_DIMENSIONS, *_KEEPING, *_SPLITTING, *_RESHAPING, operator.getitem}


def _moved(node: fx.Node, value: fx.Node, constants: Constants) -> Rearranged:
    """Return the operation itself, for batches of any size; None where it changes nothing."""
    before, after = shape_of(value), shape_of(node)
    if node.target is operator.getitem:
        return _picked(node, value)
    if node.target in _KEEPING or node.target in _SPLITTING or _keeps_all(node, value):
        return Rearranged(before, before, None)
    if node.target is aten.index.Tensor:
        _check_indices(node, constants)
    if node.target in _RESHAPING:
        channels = node.target is aten.unsqueeze.default and _along_channels(node, value)
        return Rearranged(before, after, lambda x: x.reshape(len(x), *after), channels)
    held = {arg: constants[arg] for arg in node.all_input_nodes if arg in constants}
    if len(held) + 1 < len(node.all_input_nodes):
        raise UnsupportedLayer(
            f"no proven sensitivity for {describe(node)}, which depends on the number of inputs"
        )
    channels = _along_channels(node, value)
    return Rearranged(before, after, lambda x: run_node(node, {**held, value: x}), channels)


def _along_channels(node: fx.Node, value: fx.Node) -> bool:
    """Whether an operation picks among the channels of an image and leaves its places alone.

    Places are the last two dimensions, so there must be one between them and the batch.
    """
    dims = value.meta["val"].dim() + (node.target is aten.unsqueeze.default)
    if dims < _BATCH_OF_IMAGES:
        return False
    if node.target in (aten.select.int, aten.slice.Tensor, aten.unsqueeze.default):
        return bool(int(named_arguments(node).get("dim", 0)) % dims == 1)
    if node.target is not aten.index.Tensor:
        return False
    indices = named_arguments(node)["indices"]
    return indices[0] is None and indices[1] is not None


def _keeps_all(node: fx.Node, value: fx.Node) -> bool:
    """Whether a slice takes everything: ``x[:]`` leaves one for every dimension."""
    return node.target is aten.slice.Tensor and shape_of(node) == shape_of(value)


def _picked(node: fx.Node, value: fx.Node) -> Rearranged:
    """One of the results of an operation with several: a part, or the values beside indices."""
    before, after, number = shape_of(value), shape_of(node), int(node.args[1])  # type: ignore[arg-type]
    if value.target in _SPLITTING:
        whole = value.args[0]
        return Rearranged(
            shape_of(whole),  # type: ignore[arg-type]
            after,
            lambda x: run_node(value, {whole: x})[number],  # type: ignore[dict-item]
        )
    if number != 0:
        raise UnsupportedLayer(
            f"{describe(node)} takes the result number {number} of {value.target}, for which no "
            "sensitivity is proven; place the noise before it"
        )
    return Rearranged(before, after, None)


def _check_indices(node: fx.Node, constants: Constants) -> None:
    indices = [index for index in named_arguments(node)["indices"] if index is not None]
    chosen = constants.get(indices[0]) if len(indices) == 1 else None
    once = chosen is not None and chosen.dim() == 1 and chosen.dtype == torch.int64
    # −1 and the last place are one.
    places = chosen.remainder(_size_along(node)) if chosen is not None and once else None
    if places is None or len(places.unique()) != len(places):
        raise UnsupportedLayer(
            f"{describe(node)} is supported for one list of different places only; place the "
            "noise before it"
        )


def _size_along(node: fx.Node) -> int:
    given = named_arguments(node)
    along = next(i for i, index in enumerate(given["indices"]) if index is not None)
    return int(given["self"].meta["val"].shape[along])


def _dense(node: fx.Node, value: fx.Node, constants: Constants) -> Piece:
    weight = constants[named_arguments(node)["weight"]]
    return Dense(shape_of(value), shape_of(node), weight)


def _matrix_product(node: fx.Node, value: fx.Node, constants: Constants) -> Piece:
    """``x @ W`` with a constant matrix, also as ``addmm(bias, x, W)``."""
    factor = constants[node.args[-1]]  # type: ignore[index]
    if factor.dim() != 2:
        raise UnsupportedLayer(
            f"{describe(node)} is supported for one matrix on the right of the value only; place "
            "the noise before it"
        )
    alpha = float(named_arguments(node).get("alpha", 1))
    return Dense(shape_of(value), shape_of(node), alpha * factor.mT)


def _shifted(node: fx.Node, value: fx.Node, _: Constants) -> Piece:
    """A constant added or subtracted: differences keep their size, or change their sign."""
    own = next(place for place, arg in enumerate(node.args) if arg is value)
    alpha = float(named_arguments(node).get("alpha", 1))
    factor = 1.0 if own == 0 else alpha
    if node.target is aten.sub.Tensor and own == 1:
        factor = -alpha
    if node.target is aten.rsub.Scalar:
        factor = -alpha
    return _diagonal(node, value, torch.tensor(factor, dtype=torch.float64))


def _scaled(node: fx.Node, value: fx.Node, constants: Constants) -> Piece:
    other = node.args[1] if node.args[0] is value else node.args[0]
    factor: Any = constants.get(other, other)  # type: ignore[arg-type]
    if isinstance(factor, torch.fx.Node):
        raise UnsupportedLayer(
            f"no proven sensitivity for {describe(node)}, which depends on the number of inputs"
        )
    scale = torch.as_tensor(factor).double()
    if node.target is aten.div.Tensor:
        if node.args[0] is not value:
            raise UnsupportedLayer(f"no proven sensitivity for {describe(node)}, a division by it")
        scale = 1 / scale
    return _diagonal(node, value, scale)


def _negated(node: fx.Node, value: fx.Node, _: Constants) -> Piece:
    return _diagonal(node, value, torch.tensor(-1.0, dtype=torch.float64))


def _diagonal(node: fx.Node, value: fx.Node, scale: torch.Tensor) -> Piece:
    if shape_of(node) != shape_of(value):
        raise UnsupportedLayer(
            f"{describe(node)} repeats the value to a larger shape; give the constant the shape "
            "of the value"
        )
    rows = scale.dim() - len(shape_of(value))
    if rows > 1 or (rows == 1 and scale.shape[0] != 1):
        raise UnsupportedLayer(
            f"{describe(node)} treats the inputs of a batch differently; keep the first dimension"
        )
    return Diagonal(shape_of(value), shape_of(node), scale[0] if rows == 1 else scale)


def _normalised(node: fx.Node, value: fx.Node, constants: Constants) -> Piece:
    """Batch normalisation in evaluation mode: each channel times ``weight / sqrt(var + eps)``."""
    given = named_arguments(node)
    variance = constants[given["running_var"]]
    scale = (variance + float(given["eps"])).rsqrt()
    if given.get("weight") is not None:
        scale = scale * constants[given["weight"]]
    places = len(shape_of(value)) - 1
    return Diagonal(shape_of(value), shape_of(value), scale.reshape(-1, *[1] * places))


def _cast(node: fx.Node, value: fx.Node, _: Constants) -> Piece:
    """A change of type: to a wider one it changes nothing; to whole numbers it is a step."""
    before, after = value.meta["val"].dtype, node.meta["val"].dtype
    if before == after or (before, after) == (torch.float32, torch.float64):
        return Rearranged(shape_of(value), shape_of(node), None)
    if not after.is_floating_point:
        return Nonlinear(
            tables.table_of({(0, 0): 1.0}), "whole numbers: changed coordinates only", "counting"
        )
    raise UnsupportedLayer(
        f"{describe(node)} rounds from {before} to {after} before the noise; cast after it"
    )


def _embedded(node: fx.Node, _: fx.Node, constants: Constants) -> Piece:
    """A row of a table for each category: the largest distance between two rows, each changed."""
    rows = constants[named_arguments(node)["weight"]]
    entries: dict[tuple[float, float], float] = {}
    for q in tables.NORMS[1:]:
        if len(rows) <= _CATEGORIES:
            farthest = torch.cdist(rows, rows, p=q, compute_mode="donot_use_mm_for_euclid_dist")
            entries[0, q] = float(farthest.amax())
        else:
            entries[0, q] = 2 * float((rows - rows.mean(dim=0)).norm(p=q, dim=1).amax())
    return Nonlinear(
        tables.table_of(entries), "embedding: the most distant rows", "§5, for changed categories"
    )


def _reason(node: fx.Node) -> str:
    for targets, reason in _REASONS:
        if node.target in targets:
            return f": {reason}"
    return ""


_REASONS = (
    (
        {aten._native_batch_norm_legit.no_stats, aten.instance_norm.default},  # noqa: SLF001
        "its statistics are of the input or of the batch, so that no bound holds",
    ),
    (
        {aten.layer_norm.default, aten.native_layer_norm.default, aten.group_norm.default},
        "it divides by the input's own spread, which may be arbitrarily small",
    ),
)

_RULES: dict[Any, Callable[[fx.Node, fx.Node, Constants], Piece]] = {
    aten._native_batch_norm_legit_no_training.default: _normalised,  # noqa: SLF001
    aten._to_copy.default: _cast,  # noqa: SLF001
    aten.add.Tensor: _shifted,
    aten.addmm.default: _matrix_product,
    aten.div.Tensor: _scaled,
    aten.embedding.default: _embedded,
    aten.linear.default: _dense,
    aten.matmul.default: _matrix_product,
    aten.mm.default: _matrix_product,
    aten.mul.Tensor: _scaled,
    aten.neg.default: _negated,
    aten.rsub.Scalar: _shifted,
    aten.sub.Tensor: _shifted,
    aten.to.dtype: _cast,
}
