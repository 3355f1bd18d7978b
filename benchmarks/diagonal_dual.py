"""How much an optimised diagonal gains over the classical bounds on ``‖W‖_{∞,2}``.

For signs s, ``‖W s‖² = sᵀ WᵀW s ≤ trace D`` whenever D is diagonal and ``D ⪰ WᵀW``. The least such
trace is found by a barrier method, moved back to where it is certain, and set against the classical
bounds and against what some s really reaches; the latter is exact for up to 14 inputs.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pixeldp.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Blocks = npt.NDArray[np.floating | np.complexfloating]

SEED = 1
ENUMERABLE = 14
GAP = 1e-7  # how far the barrier method stops from the optimum, relative


@dataclass(frozen=True)
class Operator:
    """A matrix and, where it is a convolution, its kernel ``[out, in, k, k]``."""

    name: str
    matrix: Array
    kernel: Array | None = None
    side: int = 0
    stride: int = 1
    padding: int = field(default=0)


# --- the optimised diagonal ---------------------------------------------------------------------


def least_diagonal(blocks: Blocks, weights: Array, *, terms: int) -> tuple[Array, Array]:
    """Minimise ``weights · d`` over ``diag(d) ⪰ G`` for all Hermitian blocks G ``[f, k, k]``.

    Newton's method on ``t weights · d − Σ_f log det(diag(d) − G_f)`` for growing t; the gap is at
    most ``f k / t``. Each entry of G is a sum of ``terms`` products. Returns the proved diagonal,
    and the matrices of the dual for rounding.
    """
    count, size, _ = blocks.shape
    top = float(np.linalg.eigvalsh(blocks).max())
    diagonal = np.full(size, 1.5 * max(top, 1e-300))
    t = count * size / float(weights @ diagonal)
    final = count * size / (GAP * float(weights @ diagonal) / size)
    while True:
        inverses = _centre(blocks, weights, diagonal, t)
        if t >= final:
            break
        t = min(10 * t, final)
    return proved(blocks, diagonal, terms=terms), inverses.real / t


def _centre(blocks: Blocks, weights: Array, diagonal: Array, t: float) -> Blocks:
    """Move ``diagonal``, in place, to the minimum for this t, and return the inverses there."""
    places = np.arange(len(diagonal))
    for _ in range(60):
        slack = -blocks
        slack[:, places, places] += diagonal
        inverses = np.linalg.inv(slack)
        gradient = t * weights - inverses[:, places, places].real.sum(0)
        hessian = (np.abs(inverses) ** 2).sum(0)
        step = np.linalg.solve(hessian, gradient)
        decrement = math.sqrt(max(float(gradient @ step), 0.0))
        if decrement < 1e-6:
            break
        # A damped step stays inside (the barrier is self-concordant).
        diagonal -= step / (1 + decrement) if decrement > 0.25 else step
    return inverses


def proved(blocks: Blocks, diagonal: Array, *, terms: int) -> Array:
    """Raise a diagonal until ``D ⪰ G`` is certain, with room for rounding in G and eigenvalues."""
    count, size, _ = blocks.shape
    shifted = blocks - np.diag(diagonal)
    largest = float(np.linalg.eigvalsh(shifted).max())
    traces = np.trace(blocks, axis1=1, axis2=2).real
    scale = float((np.linalg.norm(shifted, axis=(1, 2)) + np.abs(traces)).max())
    steps = 16 * (size + terms + math.log2(count + 1))
    rounding = steps * np.finfo(np.float64).eps * scale
    return np.asarray(diagonal + max(0.0, largest + rounding))


# --- the other bounds ---------------------------------------------------------------------------


def classical(matrix: Array) -> dict[str, float]:
    """Return the three classical bounds on ``‖W‖_{∞,2}``, and two that lie between them."""
    outputs, inputs = matrix.shape
    gram, rows = np.abs(matrix.T @ matrix), np.abs(matrix).sum(1)
    perron = float(np.linalg.eigvalsh(gram).max())
    return {
        "sqrt(n) 2,2": math.sqrt(inputs) * float(np.linalg.norm(matrix, 2)),
        "sqrt(m) inf,inf": math.sqrt(outputs) * float(rows.max()),
        "root of rows": float(np.linalg.norm(rows)),
        "root of gram": math.sqrt(float(gram.sum())),
        "gershgorin by perron": math.sqrt(inputs * perron),
    }


def phase_blocks(operator: Operator) -> tuple[Blocks, Array]:
    """Return ``G(f)`` of the convolution on a torus, and the image's places of each unknown.

    Inputs are split by channel and by phase, position + padding modulo the stride: between them
    the operator is a convolution without stride, so G is block-diagonal in frequency, and a
    diagonal that is the same at all places of a phase stays one. The zero-padded image is a part
    of the torus, so the part of D that belongs to it bounds it.
    """
    if operator.kernel is None:
        raise ValueError(f"{operator.name} is no convolution")
    outputs, inputs, size, _ = operator.kernel.shape
    step = operator.stride
    least = max(operator.side + 2 * operator.padding, operator.side + size - 1)
    side = -(-least // step)
    wide = np.zeros((outputs, inputs, side * step, side * step))
    wide[:, :, :size, :size] = operator.kernel
    split = wide.reshape(outputs, inputs, side, step, side, step).transpose(0, 1, 3, 5, 2, 4)
    spectrum = np.fft.fft2(split).reshape(outputs, inputs * step * step, -1).transpose(2, 0, 1)
    blocks = spectrum.conj().transpose(0, 2, 1) @ spectrum
    phases = (np.arange(operator.side) + operator.padding) % step
    counts = np.bincount(phases, minlength=step).astype(float)
    return blocks, np.tile(np.outer(counts, counts).ravel(), inputs)


# --- what signs reach ---------------------------------------------------------------------------


def largest_of_signs(gram: Array, starts: Array) -> tuple[float, bool]:
    """Return the largest ``sqrt(sᵀ G s)`` found over signs s, and whether it is the maximum."""
    size = len(gram)
    if size <= ENUMERABLE:
        bits = np.arange(2 ** (size - 1))[None] >> np.arange(size)[:, None] & 1
        signs = 2.0 * bits - 1
        return math.sqrt(float((signs * (gram @ signs)).sum(0).max())), True
    signs = np.where(starts >= 0, 1.0, -1.0)
    for _ in range(50):  # sᵀ G s is convex, so this never goes down
        signs = np.where(gram @ signs >= 0, 1.0, -1.0)
    for _ in range(10 * size):  # then the best single flip of each, while there is one
        gains = gram.diagonal()[:, None] - signs * (gram @ signs)
        best = gains.argmax(0)
        better = np.take_along_axis(gains, best[None], 0)[0] > 1e-12 * gram.diagonal().sum()
        if not better.any():
            break
        signs[best[better], np.flatnonzero(better)] *= -1
    return math.sqrt(float((signs * (gram @ signs)).sum(0).max())), False


def starts_for(gram: Array, dual: Array, rng: np.random.Generator) -> Array:
    """Return random directions, those of the dual's rounding, eigenvectors and the constant."""
    size, (values, vectors) = len(gram), np.linalg.eigh(dual)
    rounded = vectors * np.sqrt(np.maximum(values, 0)) @ rng.standard_normal((size, 300))
    own = np.linalg.eigh(gram)[1][:, -8:]
    return np.hstack([rng.standard_normal((size, 300)), rounded, own, np.ones((size, 1))])


# --- operators ----------------------------------------------------------------------------------


def convolution(name: str, kernel: Array, side: int, stride: int, padding: int) -> Operator:
    """Return a zero-padded convolution on ``side × side`` images as an explicit matrix."""
    outputs, inputs, size, _ = kernel.shape
    wide = side + 2 * padding
    count = (wide - size) // stride + 1
    matrix = np.zeros((outputs, count, count, inputs, wide, wide))
    for i in range(count):
        for j in range(count):
            rows, columns = (
                slice(i * stride, i * stride + size),
                slice(j * stride, j * stride + size),
            )
            matrix[:, i, j, :, rows, columns] = kernel
    inner = slice(padding, wide - padding)
    cut = matrix[..., inner, inner].reshape(outputs * count * count, -1)
    return Operator(name, cut, kernel, side, stride, padding)


def gabor(size: int, angles: int, wavelengths: tuple[float, ...]) -> Array:
    """Return Gabor filters ``[out, 1, size, size]``, such as first layers learn."""
    places = np.arange(size) - (size - 1) / 2
    y, x = np.meshgrid(places, places, indexing="ij")
    envelope = np.exp(-(x**2 + y**2) / (2 * (size / 4) ** 2))
    filters = [
        envelope * np.cos(2 * np.pi * (x * math.cos(a) + y * math.sin(a)) / wavelength + phase)
        for a in np.arange(angles) * np.pi / angles
        for wavelength in wavelengths
        for phase in (0.0, np.pi / 2)
    ]
    return np.stack(filters)[:, None]


def operators(rng: np.random.Generator) -> Iterator[Operator]:
    """Yield dense matrices of several kinds, and convolutions."""
    for rows, columns in ((8, 12), (24, 14), (20, 100), (64, 64), (128, 64), (100, 200)):
        gaussian = rng.standard_normal((rows, columns))
        yield Operator(f"gaussian {rows}×{columns}", gaussian)
        near = np.abs(np.subtract.outer(np.arange(columns), np.arange(columns)))
        factor = np.linalg.cholesky(0.9**near)
        yield Operator(f"correlated columns {rows}×{columns}", gaussian @ factor.T)
        scales = np.exp(rng.standard_normal(columns))
        yield Operator(f"uneven columns {rows}×{columns}", gaussian * scales)
    for channels, stride in ((1, 1), (1, 2), (3, 1), (3, 2)):
        shape = f"{channels} channels, stride {stride}"
        random = rng.standard_normal((4, channels, 3, 3))
        yield convolution(f"random 3×3, {shape}", random, 8, stride, 1)
        colour = np.array([0.3, 0.59, 0.11])[:channels, None, None]
        filters = gabor(5, 4, (3.0, 6.0)) * (colour if channels == 3 else 1.0)
        yield convolution(f"gabor 5×5, {shape}", filters, 8, stride, 2)
    sobel = np.array([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]])
    yield convolution(
        "edges 3×3, 1 channels, stride 1", np.stack([sobel, sobel.T])[:, None], 8, 1, 1
    )
    yield convolution("mean 3×3, 1 channels, stride 1", np.full((1, 1, 3, 3), 1 / 9), 8, 1, 1)
    opponent = np.stack([gabor(5, 2, (4.0,))[:, 0] * w for w in (1.0, -1.0, 0.1)], 1)
    yield convolution("colour edges 5×5, 3 channels, stride 2", opponent, 8, 2, 2)


# --- the comparison -----------------------------------------------------------------------------


def compare(operator: Operator, rng: np.random.Generator) -> dict[str, Any]:
    """Return each bound on ``‖W‖_{∞,2}`` in units of what signs reach."""
    matrix = operator.matrix
    gram = matrix.T @ matrix
    diagonal, dual = least_diagonal(gram[None], np.ones(len(gram)), terms=len(matrix))
    reached, exact = largest_of_signs(gram, starts_for(gram, dual[0], rng))
    known = classical(matrix)
    three = [known[name] for name in ("sqrt(n) 2,2", "sqrt(m) inf,inf", "root of gram")]
    bounds = {**known, "best of three": min(three), "diagonal": math.sqrt(float(diagonal.sum()))}
    if operator.kernel is not None:
        blocks, places = phase_blocks(operator)
        even = float(np.linalg.eigvalsh(blocks).max()) * places.sum()
        bounds["torus, one number"] = math.sqrt(even)
        bounds["torus, by channel and phase"] = math.sqrt(
            float(places @ least_diagonal(blocks, places, terms=operator.kernel.shape[0])[0])
        )
    low = min(bounds.values()) / reached
    if low < 1 - 1e-9:
        raise ArithmeticError(f"{operator.name}: a bound lies below what is reached, by {low}")
    ratios = {name: round(bound / reached, 4) for name, bound in bounds.items()}
    return {"inputs": matrix.shape[1], "outputs": len(matrix), "exact": exact, **ratios}


def to_one(matrix: Array, rng: np.random.Generator) -> dict[str, Any]:
    """Return the same for ``‖W‖_{∞,1} = max sᵀ W t`` over signs s and t."""
    outputs, inputs = matrix.shape
    both = np.zeros((outputs + inputs, outputs + inputs))
    both[:outputs, outputs:] = matrix / 2
    both += both.T
    diagonal, _ = least_diagonal(both[None], np.ones(len(both)), terms=1)
    signs = rng.standard_normal((inputs, 2000))
    for _ in range(60):
        signs = np.where(matrix.T @ np.where(matrix @ signs >= 0, 1.0, -1.0) >= 0, 1.0, -1.0)
    reached = float(np.abs(matrix @ signs).sum(0).max())
    bounds = {
        "sqrt(m n) 2,2": math.sqrt(outputs * inputs) * float(np.linalg.norm(matrix, 2)),
        "sum": float(np.abs(matrix).sum()),
        "diagonal": float(diagonal.sum()),
    }
    return {name: round(bound / reached, 4) for name, bound in bounds.items()}


def border(rng: np.random.Generator) -> dict[str, Any]:
    """Return the torus bounds in units of the optimised diagonal of the image, as images grow."""
    kernels = {
        "random 3×3, 1 channels": rng.standard_normal((4, 1, 3, 3)),
        "gabor 5×5, 1 channels": gabor(5, 4, (3.0, 6.0)),
        "random 3×3, 3 channels": rng.standard_normal((4, 3, 3, 3)),
    }
    found: dict[str, Any] = {}
    for name, kernel in kernels.items():
        for side in (6, 10, 14):
            operator = convolution(name, kernel, side, 1, kernel.shape[2] // 2)
            gram = operator.matrix.T @ operator.matrix
            diagonal, _ = least_diagonal(gram[None], np.ones(len(gram)), terms=len(operator.matrix))
            blocks, places = phase_blocks(operator)
            even = float(np.linalg.eigvalsh(blocks).max()) * places.sum()
            least = places @ least_diagonal(blocks, places, terms=len(kernel))[0]
            found[f"{name}, side {side}"] = {
                "torus, one number": round(math.sqrt(even / diagonal.sum()), 4),
                "torus, by channel": round(math.sqrt(float(least) / diagonal.sum()), 4),
            }
    return found


def summary() -> dict[str, Any]:
    """Compare on all operators."""
    rng = np.random.default_rng(SEED)
    every = list(operators(rng))
    return {
        "inf to 2": {one.name: compare(one, rng) for one in every},
        "torus in units of the image's own diagonal": border(rng),
        "inf to 1": {
            one.name: to_one(one.matrix, rng) for one in every if one.matrix.size < 40_000
        },
    }


def main() -> None:
    """Compare and print; with --json, as one object that can be kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    numbers = summary()
    if options.json:
        command = "python benchmarks/diagonal_dual.py --json"
        print(record(command=command, seed=SEED, numbers=numbers), end="")
        return
    for title, rows in numbers.items():
        print(title)
        for name, row in rows.items():
            print(f"  {name:38}", "  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
