"""The datasets: the paper's ten by OpenML's names, and three that scikit-learn ships, one of them the paper's.

Numbers that are missing become the median of the training records; a text that is missing is a value of its own. Texts
are one-hot encoded, the 20 most frequent values at most and the rest together (Diabetes 130-US has codes of diseases by
the hundred); the paper does not say how it encodes them. Everything is standardised on the training records.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn import datasets as shipped
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from torch import Tensor

from strategies.exact_shares import floor_of

_TIMEOUT = 20.0
_CATEGORIES = 20


class Unavailable(Exception):
    """A dataset cannot be had; the message says why."""


@dataclass(frozen=True)
class OpenML:
    """A dataset on OpenML: `name` and `version` there, the column to predict, columns that are no features.

    positive: which labels are class 1; None: the labels are two already.
    """

    title: str
    name: str
    version: int
    target: str
    positive: Callable[[pd.Series], pd.Series] | None = None
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shipped:
    """A dataset inside scikit-learn; `in_paper`: RULER uses it."""

    title: str
    load: Callable[..., Any]
    in_paper: bool = False


SOURCES: dict[str, OpenML | Shipped] = {
    "adult": OpenML("Adult Income", "adult", 2, "class"),
    "diabetes_130": OpenML("Diabetes 130-US", "Diabetes130US", 1, "readmitted", lambda labels: labels == "<30"),
    "breast_cancer": Shipped("Breast Cancer", shipped.load_breast_cancer, in_paper=True),
    "heart_disease": OpenML("Heart Disease", "heart-c", 1, "num", lambda labels: labels != "<50"),
    "german_credit": OpenML("German Credit", "credit-g", 1, "class"),
    "bank_marketing": OpenML("Bank Marketing", "bank-marketing", 1, "Class"),
    "wine_quality": OpenML("Wine Quality", "wine-quality-red", 1, "class", lambda labels: labels.astype(float) >= 6),
    "phoneme": OpenML("Phoneme", "phoneme", 1, "Class"),
    "magic_telescope": OpenML("Magic Telescope", "MagicTelescope", 1, "class:", None, ("ID",)),
    "electricity": OpenML("Electricity", "electricity", 1, "class"),
    "wine": Shipped("Wine", shipped.load_wine),
    "digits": Shipped("Digits", shipped.load_digits),
}


def in_paper(name: str) -> bool:
    """Whether RULER uses the dataset."""
    source = SOURCES[name]
    return isinstance(source, OpenML) or source.in_paper


@dataclass(frozen=True)
class Records:
    """x (n, features) float32, standardised; y (n,) int64 classes from 0."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def of(self, rows: np.ndarray) -> Records:
        """These records alone, in the order of `rows`."""
        picked = torch.from_numpy(rows)
        return Records(self.x[picked], self.y[picked])


@dataclass(frozen=True)
class Dataset:
    """A dataset ready for training."""

    name: str
    title: str
    train: Records
    test: Records
    classes: int

    @property
    def features(self) -> int:
        """Inputs of the classifier, after encoding."""
        return self.train.x.shape[1]


def load(name: str, data_home: str | None, test_fraction: float, split_seed: int) -> Dataset:
    """The dataset of that name in `SOURCES`, split with the classes' shares kept, encoded and standardised.

    data_home: scikit-learn's cache of fetched data, None: its default. Raises Unavailable.
    """
    source = SOURCES[name]
    if isinstance(source, OpenML):
        features, labels = _fetched(source, data_home)
    else:
        features, labels = source.load(return_X_y=True, as_frame=True)
    classes, y = np.unique(labels.to_numpy(), return_inverse=True)
    if len(classes) < 2:
        raise Unavailable(f"{source.title} has labels of one class only: {classes[0]}")
    train, test = train_test_split(np.arange(len(y)), test_size=test_fraction, stratify=y, random_state=split_seed)
    encode = _encoder(features)
    return Dataset(
        name,
        source.title,
        train=_records(encode.fit_transform(features.iloc[train]), y[train]),
        test=_records(encode.transform(features.iloc[test]), y[test]),
        classes=len(classes),
    )


def forget_rows(records: int, fraction: float, fewest: int, seed: int) -> np.ndarray:
    """Which of `records` training records to forget, ascending: ⌊fraction · records⌋ of them, at least `fewest`.

    The first so many of one permutation: a smaller forget set lies inside a larger one. Raises ValueError if fewer than
    two records would be left.
    """
    count = max(fewest, floor_of(fraction, records))
    if count > records - 2:
        raise ValueError(f"{count} of {records} records are to be forgotten, and at least two must be left")
    return np.sort(np.random.RandomState(seed).permutation(records)[:count])


def _records(x: Any, y: np.ndarray) -> Records:
    return Records(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64))


def _fetched(source: OpenML, data_home: str | None) -> tuple[pd.DataFrame, pd.Series]:
    """Features, and labels as clean texts or True and False, of a dataset on OpenML or in the cache."""
    try:
        with _impatient():
            features, labels = shipped.fetch_openml(
                name=source.name,
                version=source.version,
                target_column=source.target,
                data_home=data_home,
                return_X_y=True,
                as_frame=True,
                n_retries=1,
                delay=0.5,
            )
    except Exception as error:  # the network, OpenML's answer, or what the cache holds
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Unavailable(f"OpenML's {source.name!r}, version {source.version}: {reason}") from error
    features = features.drop(columns=[name for name in source.dropped if name in features])
    labels = labels.astype(str).str.strip().str.strip("'\"")
    return features, labels if source.positive is None else source.positive(labels)


@contextmanager
def _impatient() -> Iterator[None]:
    """Connections that answer nothing for a while are given up, and the retries are not announced."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        socket.setdefaulttimeout(before)


def _encoder(features: pd.DataFrame) -> Pipeline:
    numbers = features.select_dtypes("number").columns
    texts = features.columns.difference(numbers, sort=False)
    one_hot = OneHotEncoder(
        drop="if_binary", handle_unknown="infrequent_if_exist", max_categories=_CATEGORIES, sparse_output=False
    )
    columns = ColumnTransformer(
        [
            ("numbers", SimpleImputer(strategy="median", keep_empty_features=True), numbers),
            ("texts", make_pipeline(FunctionTransformer(_as_text), one_hot), texts),
        ],
        sparse_threshold=0,
    )
    return make_pipeline(columns, StandardScaler())


def _as_text(features: pd.DataFrame) -> pd.DataFrame:
    return features.astype(object).where(features.notna(), "missing").astype(str)
