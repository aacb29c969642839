"""Linear classifiers of each class against all others, with the squared hinge loss.

There are three ways to fit, with the same minimum:

- Up to MOST_ROWS rows: `ProductFitter` fits all classes at once by Newton's method on the products of the rows with
  each other (Chapelle, "Training a Support Vector Machine in the Primal", 2007). This takes a fifth of LIBLINEAR's time
  or less: the products are computed once for all strengths of the penalty, those of n-grams of characters once for all
  shares of the kinds of n-grams, and each fit begins where the previous one ended.
- More rows on a CPU: `Fitter` uses LIBLINEAR, through scikit-learn. It splits the classes into up to eight parts, and
  fits the parts in parallel if there are enough cores and memory. The parts need processes, since all threads of a
  process share LIBLINEAR's random numbers.
- More rows on a GPU: `GpuFitter` uses Newton's method on the weights of the features.

On nine sets with 500 rows, this loss was 0.4 points better on average than multinomial logistic regression on the same
features (2 points on a set with 42 classes). Cross-validation chose the penalty of each.
"""

from __future__ import annotations

import math
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import psutil
import scipy.sparse as sp
from numpy.typing import NDArray

from ..errors import BroadsheetError
from ..processes.child import Child, parent_of
from ..processes.messages import Closed, packed, receive, send, unpacked
from ..processes.threads import available_cores, free_cores

Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]

MOST_ROWS = 7_000
"""The products of this many rows with each other take 200 MB."""

_COMMON = 0.1  # a feature that more than this share of the rows have is multiplied as a dense one
_BLOCK = 512  # rows whose products of sparse features become dense at once
# The most Newton steps of a fit, directions of conjugate gradients in a step, and halvings of a step.
_MOST_STEPS, _MOST_DIRECTIONS, _MOST_HALVINGS = 30, 100, 8
_NEARER = 0.1  # conjugate gradients stop if their residual is at most this share of the first one
_SETTLED = 1e-3  # the relative error at which a fit stops; smaller errors changed the accuracy on none of our sets
_FURTHER = 10**0.5  # the factor between two penalties, if a fit begins with larger ones
_LEVEL = 1e-4  # a fit stops if the gradient is at most this share of the gradient at zero weights
_LEAST, _ROUNDED = np.float32(1e-30), 1e-5  # the least divisor; the relative rounding error of a loss

_PARTS = 8
_WORTH = 16_000_000
"""With more features than this, counted over all rows and classes, LIBLINEAR takes longer than processes to start."""

_OF_PROCESSES = {
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore::RuntimeWarning:runpy",  # the package imports this module before runpy runs it
}


class Fitted(NamedTuple):
    """A fitted linear model.

    Attributes
    ----------
    weights : float64 [features, classes]
        The weights of the sparse features.
    of_dense : float64 [more, classes]
        The weights of the dense features.
    bias : float64 [classes]
        The bias.

    """

    weights: Doubles
    of_dense: Doubles
    bias: Doubles


def products(left: sp.csr_array, right: sp.csr_array) -> Singles:
    """Return the products of N rows, `left`, with M rows, `right`: [N, M]."""
    # Multiply features of many rows as dense arrays, and the others as sparse ones, block by block.
    rows = np.minimum(*(np.bincount(side.indices, minlength=right.shape[1]) for side in (left, right)))
    common, others = np.flatnonzero(rows > _COMMON * right.shape[0]), np.flatnonzero(rows)
    others = np.setdiff1d(others, common, assume_unique=True)
    left_dense, right_dense = (side[:, common].astype(np.float32).toarray() for side in (left, right))
    sums: Singles = left_dense @ right_dense.T
    few, of_few = left[:, others].astype(np.float32), right[:, others].astype(np.float32).T.tocsr()
    for first in range(0, len(sums), _BLOCK):
        sums[first : first + _BLOCK] += (few[first : first + _BLOCK] @ of_few).toarray()
    return sums


class ProductFitter:
    """Fits to N rows by Newton's method on their products with each other. Each fit begins where the last one ended.

    Parameters
    ----------
    products : float32 [N, N]
        The products of the rows, plus 1 for the bias.
    truth, weights
        See `Fitter`.

    """

    def __init__(self, products: Singles, truth: Doubles, weights: Doubles) -> None:
        self._products, self._truth = products, truth.astype(np.float32)
        self._weights = weights if weights.ndim > 1 else np.broadcast_to(weights[:, None], truth.shape)
        self._of_rows = np.zeros(truth.shape, np.float32)

    def fit(self, strength: float) -> Singles:
        """Return the coefficient of each row, [N, classes], that minimises the loss.

        The weights of the features are the sum of the rows' features, each row times its coefficient. From zero
        coefficients, Newton's steps may not come near to the minimum. The fit then begins again with a larger penalty,
        and makes it smaller step by step.
        """
        from_nothing = not self._of_rows.any()
        if not self._settles(strength) and from_nothing:
            self._of_rows = np.zeros_like(self._of_rows)
            steps = max(0, math.ceil(math.log(1 / strength, _FURTHER)))
            for larger in strength * _FURTHER ** np.arange(steps, -1, -1):
                self._settles(larger)
        return self._of_rows

    def _settles(self, strength: float) -> bool:
        """Take Newton steps from where the last fit ended. Return whether they came near to the minimum.

        The minimum is where the coefficients equal those that the derivative of the loss gives (`_pulled`). A class
        whose coefficients are near enough to these is left out of further steps.
        """
        pull = (2 * self._weights / (len(self._truth) * strength)).astype(np.float32)
        of_rows = self._of_rows
        given = self._products @ of_rows
        unsettled = np.arange(self._truth.shape[1])
        for _ in range(_MOST_STEPS):
            # Leave out the classes that have come near enough.
            aim = _pulled(self._truth[:, unsettled], given[:, unsettled], pull[:, unsettled])
            distance = np.linalg.norm(aim - of_rows[:, unsettled], axis=0)
            unsettled = unsettled[distance > _SETTLED * np.linalg.norm(aim, axis=0)]
            if not len(unsettled):
                return True
            # Compute the step of each other class, and halve it while it increases the loss.
            truth, outputs, coefficients, pulls = (
                values[:, unsettled] for values in (self._truth, given, of_rows, pull)
            )
            step = self._step(truth, outputs, coefficients, pulls) - coefficients
            change = self._products @ step
            before, factor = _loss(truth, outputs, coefficients, pulls), np.ones(len(unsettled), np.float32)
            for _ in range(_MOST_HALVINGS):
                after = _loss(truth, outputs + factor * change, coefficients + factor * step, pulls)
                worse = after > before * (1 + _ROUNDED)
                if not worse.any():
                    break
                factor[worse] /= 2
            of_rows[:, unsettled] = coefficients + factor * step
            given[:, unsettled] = outputs + factor * change
        return False

    def _step(self, truth: Singles, given: Singles, of_rows: Singles, pull: Singles) -> Singles:
        """Return the minimum of the loss as if each row stayed on its side of the margin, by conjugate gradients.

        The loss is then quadratic. With `slope` s, outputs f and the coefficients p that `_pulled` gives at f, the
        minimum a of the rows with a loss solves (K + 1/s) a = p/s + f, where K are their products. All other
        coefficients are 0.
        """
        slope: Singles = pull * (truth * (given < 1) + (1 - truth) * (given > -1))
        counts = slope > 0
        inverse: Singles = np.where(counts, 1 / np.where(counts, slope, 1), 1).astype(np.float32)
        counted: Singles = np.where(counts, of_rows, 0)

        def product(direction: Singles) -> Singles:
            multiplied: Singles = np.where(counts, self._products @ direction, 0) + inverse * direction
            return multiplied

        aim: Singles = np.where(counts, _pulled(truth, given, pull) * inverse + given, 0)
        scale: Singles = (1 / (inverse + self._products.diagonal()[:, None])).astype(np.float32)
        return _solved(product, counted, aim - product(counted), scale)


def _solved(product: Callable[[Singles], Singles], solution: Singles, off: Singles, scale: Singles | float) -> Singles:
    """Solve a linear system for each column by conjugate gradients, with a preconditioner.

    All arrays are of NumPy, or all of CuPy.

    Parameters
    ----------
    product : callable
        Multiplies columns by the matrix of the system.
    solution : float32 [N, columns]
        The first guess, which is changed in place.
    off : float32 [N, columns]
        The residual of the first guess, which is changed in place.
    scale : float32 [N, columns], or float
        The preconditioner: about the inverse of the matrix's diagonal.

    """
    goal = _NEARER * np.linalg.norm(off, axis=0)
    direction: Singles = scale * off
    size = (scale * off**2).sum(axis=0)
    for _ in range(_MOST_DIRECTIONS):
        ahead = product(direction)
        factor = size / np.maximum((direction * ahead).sum(axis=0), _LEAST)
        solution += factor * direction
        off -= factor * ahead
        if (np.linalg.norm(off, axis=0) <= goal).all():
            break
        before, size = size, (scale * off**2).sum(axis=0)
        direction = scale * off + size / np.maximum(before, _LEAST) * direction
    return solution


class NewtonFitter:
    """Fits to rows by Newton's method on the weights of the features, for all classes at once.

    Each fit begins where the last one ended. The source is Lin, Weng and Keerthi, "Trust Region Newton Method for
    Logistic Regression", 2008; but here, a step that increases the loss is halved.

    Parameters
    ----------
    rows : [N, features]
        A matrix of the features that supports ``@``. The last feature is 1, for the bias.
    turned : [features, N]
        The transposed matrix.
    truth : float32 [N, classes]
        See `Fitter`. The arrays are all of NumPy, or all of CuPy.
    weights : float32 [N, 1] or [N, classes]
        See `Fitter`.

    """

    def __init__(self, rows: Any, turned: Any, truth: Singles, weights: Singles) -> None:
        self._rows, self._turned, self._truth, self._pull = rows, turned, truth, 2 * weights / len(truth)
        # The norm of each class's gradient at zero weights, to which `fit` compares the gradient.
        self._first = np.linalg.norm(turned @ (self._pull * (1 - 2 * truth)), axis=0)
        self._solution = 0 * (turned @ truth)

    def fit(self, strength: float) -> Any:
        """Return the weights [features, classes] with the least loss. The last row is the bias."""
        solution, given = self._solution, self._rows @ self._solution
        loss, slopes = self._loss(solution, given, strength)
        for _ in range(_MOST_STEPS):
            gradient = strength * solution + self._turned @ slopes
            steep = np.linalg.norm(gradient, axis=0) > _LEVEL * self._first
            if not steep.any():
                break
            # Compute the step of each class that is not at its minimum yet.
            counts = self._pull * (self._truth * (given < 1) + (1 - self._truth) * (given > -1))

            def product(direction: Singles, counts: Singles = counts) -> Singles:
                multiplied: Singles = strength * direction + self._turned @ (counts * (self._rows @ direction))
                return multiplied

            step = _solved(product, 0 * gradient, -(gradient * steep), 1.0)
            change, factor = self._rows @ step, steep.astype(np.float32)
            # Halve the steps that increase the loss.
            for _ in range(_MOST_HALVINGS):
                tried, slopes = self._loss(solution + factor * step, given + factor * change, strength)
                worse = tried > loss * (1 + _ROUNDED)
                if not worse.any():
                    break
                factor = np.where(worse, factor / 2, factor)
            else:
                break  # for some class, no step makes the loss smaller
            solution, given, loss = solution + factor * step, given + factor * change, tried
        self._solution = solution
        return solution

    def _loss(self, solution: Singles, given: Singles, strength: float) -> tuple[Singles, Singles]:
        """Return the loss of each class, and its derivative with respect to each output of a row."""
        short, over = np.maximum(1 - given, 0), np.maximum(1 + given, 0)
        of_rows = self._pull * (self._truth * short**2 + (1 - self._truth) * over**2)
        loss = (of_rows.sum(axis=0) + strength * (solution**2).sum(axis=0)) / 2
        return loss, self._pull * ((1 - self._truth) * over - self._truth * short)


def _pulled(truth: Singles, given: Singles, pull: Singles) -> Singles:
    """Return the coefficient of each row that the derivative of its loss gives, [N, classes].

    given: the outputs for the rows, [N, classes]. pull: twice each row's weight, divided by N and the strength of the
    penalty.
    """
    pulled: Singles = pull * (truth * np.maximum(1 - given, 0) - (1 - truth) * np.maximum(1 + given, 0))
    return pulled


def _loss(truth: Singles, given: Singles, of_rows: Singles, pull: Singles) -> Singles:
    """Return the loss of each class, divided by the strength of the penalty.

    Half the sum of ``of_rows * given`` is the penalty: half the squared length of the weights that follow from the
    coefficients.
    """
    short = truth * np.maximum(1 - given, 0) ** 2 + (1 - truth) * np.maximum(1 + given, 0) ** 2
    loss: Singles = (of_rows * given + pull * short).sum(axis=0) / 2
    return loss


class Problem(NamedTuple):
    """The data that all fits to some rows share.

    Attributes
    ----------
    features : sparse [rows, features]
        The features.
    truth : float64 [rows, classes]
        See `Fitter`.
    weights : float64 [rows], or [rows, classes]
        See `Fitter`.
    one_label : bool
        Whether each row has exactly one label, and the same weight for all classes.

    """

    features: sp.csr_array
    truth: Doubles
    weights: Doubles
    one_label: bool

    @property
    def parts(self) -> list[NDArray[np.int64]]:
        """The classes of each part that is fitted at once.

        The parts don't depend on the number of cores, so the result is the same, bit by bit, on every machine.
        """
        classes = self.truth.shape[1]
        return np.array_split(np.arange(classes), min(_PARTS, classes) if classes > 2 else 1)

    def fit(self, part: NDArray[np.int64], strength: float) -> tuple[Doubles, Doubles]:
        """Fit the classes of a part: their weights [classes of the part, features], and their biases."""
        # If all rows agree about a class, it has no weights, and its bias has this exact solution.
        slope = 2 * self.weights.mean()  # the bias b is the minimum of slope/2 * (1 - b)² + strength/2 * b²
        weights = np.zeros((len(part), self.features.shape[1]))
        bias = (2 * self.truth[0, part] - 1) * slope / (slope + strength)
        # With one label each, one call of LIBLINEAR fits all classes of the part, against each other and the others.
        if self.one_label:
            of_rows = self.truth.argmax(axis=1)
            labels = np.where(np.isin(of_rows, part), of_rows, -1)
            there = np.unique(labels)
            if len(there) > 1:
                planes, biases = self._fitted(self.features, labels, self.weights, strength)
                if len(there) == 2:
                    planes, biases = np.vstack([-planes, planes]), np.concatenate([-biases, biases])
                ours = there >= 0
                weights[there[ours] - part[0]], bias[there[ours] - part[0]] = planes[ours], biases[ours]
            return weights, bias
        # Otherwise, fit class by class. A row that is partly right is on both sides, with its shares as weights.
        for at, number in enumerate(part):
            weighs = self.weights if self.weights.ndim == 1 else self.weights[:, number]
            both = self.truth[:, number], 1 - self.truth[:, number]
            right, wrong = (np.flatnonzero(share * (weighs > 0)) for share in both)
            if len(right) and len(wrong):
                rows, sides = np.concatenate([right, wrong]), np.repeat([1, -1], [len(right), len(wrong)])
                shares = np.where(sides > 0, self.truth[rows, number], 1 - self.truth[rows, number])
                planes, biases = self._fitted(self.features[rows], sides, weighs[rows] * shares, strength)
                weights[at], bias[at] = planes[0], biases[0]
        return weights, bias

    def _fitted(
        self, features: sp.csr_array, labels: NDArray[np.int64], weights: Doubles, strength: float
    ) -> tuple[Doubles, Doubles]:
        """Fit by LIBLINEAR: the weights and biases of the labels in ascending order; of two labels only the larger."""
        # LIBLINEAR's loss is a sum over the rows, not a mean.
        machine = _machine("LinearSVC", features, labels, weights, C=1 / (strength * len(self.truth)))
        return machine.coef_, machine.intercept_


def _machine(kind: str, features: sp.csr_array, truth: NDArray[Any], weights: Doubles | None, **options: Any) -> Any:
    """Fit one of LIBLINEAR's models.

    The import is inside this function, because importing scikit-learn takes longer than fitting few rows, which do not
    need it.
    """
    from sklearn import svm
    from sklearn.exceptions import ConvergenceWarning

    machine = getattr(svm, kind)(tol=_SETTLED, random_state=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return machine.fit(features, truth, sample_weight=weights)


class Processes:
    """Processes that fit the parts of a problem. They end with this object.

    Raises BroadsheetError if a process cannot be started, or if it ends.
    """

    def __init__(self, problem: Problem, count: int) -> None:
        self._children: list[Child] = []
        try:
            for _ in range(count):
                self._children.append(Child("broadsheet.pipeline.train.linear", environment=_OF_PROCESSES))
        except OSError as error:
            raise BroadsheetError(f"a process that fits n-grams cannot be started: {error}") from error
        self._ask([problem] * count)

    def fit(self, parts: list[NDArray[np.int64]], strength: float) -> list[tuple[Doubles, Doubles]]:
        """Return the result of `Problem.fit` for each part."""
        count = len(self._children)
        self._ask([(parts[first::count], strength) for first in range(count)])
        answers: list[Any] = [None] * len(parts)
        for first, child in enumerate(self._children):
            with self._told(child):
                answers[first::count] = unpacked(receive(child.connection))
        return answers

    def _ask(self, messages: list[Any]) -> None:
        for child, message in zip(self._children, messages, strict=True):
            with self._told(child):
                send(child.connection, packed(message))

    @contextmanager
    def _told(self, child: Child) -> Iterator[None]:
        """Raise BroadsheetError, which says how the process ended, if the connection to it closes in the block."""
        try:
            yield
        except Closed as error:
            raise BroadsheetError(f"a process that fits n-grams {child.how_it_ended()}") from error

    def __del__(self) -> None:
        for child in self._children:
            child.end()


def _serve(connection: socket.socket) -> None:
    """Receive a problem, then answer requests to fit parts of it, until the connection closes, which raises Closed."""
    problem: Problem = unpacked(receive(connection))
    while True:
        parts, strength = unpacked(receive(connection))
        send(connection, packed([problem.fit(part, strength) for part in parts]))


class Fitter:
    """Fits to the same rows with different strengths of the penalty, by LIBLINEAR.

    Parameters
    ----------
    features : sparse [rows, features]
        The features.
    truth : float64 [rows, classes]
        How far each class is right, from 0 to 1.
    weights : float64 [rows], or [rows, classes]
        The weight of each row, or of each row for each class.
    dense : float64 [rows, more], optional
        More features, which are dense.

    """

    def __init__(self, features: sp.csr_array, truth: Doubles, weights: Doubles, dense: Doubles | None = None) -> None:
        self._sparse = features.shape[1]
        if dense is not None:
            features = sp.hstack([features, sp.csr_array(dense)], format="csr")
        one_hot = truth.argmax(axis=1)[:, None] == np.arange(truth.shape[1])
        self._problem = Problem(features, truth, weights, weights.ndim == 1 and bool((truth == one_hot).all()))
        self._count = _processes_for(self._problem)
        self._processes: Processes | None = None

    def fit(self, strength: float) -> Fitted:
        """Minimise the mean squared hinge loss, summed over the classes, plus strength/2 * sum of squared weights.

        The bias is the weight of a feature that every row has, and the penalty includes it.
        """
        parts = self._problem.parts
        if self._count > 1:
            self._processes = self._processes or Processes(self._problem, self._count)
            fits = self._processes.fit(parts, strength)
        else:
            fits = [self._problem.fit(part, strength) for part in parts]
        weights = np.concatenate([of_part for of_part, _ in fits]).T
        return Fitted(weights[: self._sparse], weights[self._sparse :], np.concatenate([bias for _, bias in fits]))


class GpuFitter:
    """Fits like `Fitter`, on a GPU. Raises BroadsheetError if the GPU has too little memory."""

    def __init__(self, features: sp.csr_array, truth: Doubles, weights: Doubles, dense: Doubles | None = None) -> None:
        import cupy as cp

        self._sparse = features.shape[1]
        others = np.ones((len(truth), 1)) if dense is None else np.column_stack([dense, np.ones(len(truth))])
        rows = sp.hstack([features, sp.csr_array(others)], format="csr")
        of_classes = weights if weights.ndim > 1 else weights[:, None]
        with _enough_memory():
            arrays = (cp.asarray(values, np.float32) for values in (truth, of_classes))
            self._newton = NewtonFitter(_OnGpu(rows), _OnGpu(rows.T.tocsr()), *arrays)

    def fit(self, strength: float) -> Fitted:
        """Minimise the loss of `Fitter.fit`."""
        with _enough_memory():
            weights = self._newton.fit(strength).get().astype(np.float64)
        return Fitted(weights[: self._sparse], weights[self._sparse : -1], weights[-1])


class _OnGpu:
    """A sparse matrix that multiplies CuPy's arrays, by cuSPARSE through PyTorch."""

    def __init__(self, matrix: sp.csr_array) -> None:
        import torch

        parts = matrix.indptr, matrix.indices, matrix.data.astype(np.float32)
        rows, columns, values = (torch.from_numpy(part).cuda() for part in parts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # PyTorch warns that sparse tensors are in beta state
            self._matrix = torch.sparse_csr_tensor(rows, columns, values, matrix.shape)

    def __matmul__(self, right: Any) -> Any:
        import cupy as cp
        import torch

        return cp.from_dlpack(self._matrix @ torch.from_dlpack(right))  # type: ignore[attr-defined]


@contextmanager
def _enough_memory() -> Iterator[None]:
    import cupy as cp
    import torch

    try:
        yield
    except (torch.OutOfMemoryError, cp.cuda.memory.OutOfMemoryError) as error:
        raise BroadsheetError("the GPU has too little memory for these n-grams: fit them with --device cpu") from error


def _processes_for(problem: Problem) -> int:
    """Return how many processes are worth their start and fit into memory.

    Each process holds the features twice: a copy of its own, and LIBLINEAR's.
    """
    size = 40 * int(problem.features.nnz)  # bytes
    if problem.features.nnz * problem.truth.shape[1] < _WORTH:
        return 1
    memory = int(psutil.virtual_memory().available)
    cores = min(free_cores() + 1, available_cores())  # this process counts as busy, but it only waits for the others
    return max(1, min(len(problem.parts), cores, memory // (2 * size)))


class NumberFitter:
    """Fits one number to rows, as `Fitter` fits classes.

    numbers: float64 [rows]. absolute: whether the loss is the absolute error; if not, it is the squared error.
    """

    def __init__(self, features: sp.csr_array, numbers: Doubles, dense: Doubles | None, absolute: bool) -> None:
        self._features = features if dense is None else sp.hstack([features, sp.csr_array(dense)], format="csr")
        self._sparse, self._absolute = features.shape[1], absolute
        self._centre = float(np.median(numbers) if absolute else numbers.mean())
        self._scale = float(numbers.std()) or 1.0
        self._numbers = (numbers - self._centre) / self._scale

    def fit(self, strength: float) -> Fitted:
        """Minimise the mean loss of the standardised number plus strength/2 * sum of squared weights."""
        losses = ("squared_epsilon_insensitive", "epsilon_insensitive")
        options = {"C": 1 / (strength * len(self._numbers)), "loss": losses[self._absolute], "dual": self._absolute}
        machine = _machine("LinearSVR", self._features, self._numbers, None, epsilon=0, **options)
        weights = self._scale * machine.coef_[:, None]
        bias = np.array([self._centre + self._scale * float(np.ravel(machine.intercept_)[0])])
        return Fitted(weights[: self._sparse], weights[self._sparse :], bias)


if __name__ == "__main__":
    with suppress(Closed):
        _serve(parent_of(sys.argv[1]))
