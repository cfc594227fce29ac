"""Imported first by ``mlt.tensorflow.keras``: with another backend of Keras its import names the right plugin."""

from __future__ import annotations

from mlt.tensorflow.requirement import require_keras_of_tensorflow

require_keras_of_tensorflow("mlt.tensorflow.keras")
