"""A text classifier as an estimator of scikit-learn (the extra `sklearn`)."""

from .pipeline.sklearn import TextClassifier as TextClassifier
