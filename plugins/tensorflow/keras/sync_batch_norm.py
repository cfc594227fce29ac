"""``SyncBatchNormalization``: batch normalization with the mean and variance of all ranks' batches."""

from __future__ import annotations

from typing import Any

import keras
from mlt.tensorflow.collectives import allreduce

import tensorflow as tf
from mlt._named.reduce_ops import Sum


@keras.saving.register_keras_serializable("mlt")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Takes the place of ``keras.layers.BatchNormalization``, with its arguments.

    Ranks may have batches of different sizes, also with masks. All ranks call it in the same steps. In training it
    communicates twice in each direction.
    """

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Called by Keras in training: mean and variance, of shape (channels,)."""
        axes = list(self._reduction_axes)
        if mask is None:
            kept, count = inputs, tf.cast(tf.size(inputs) // tf.shape(inputs)[self.axis], inputs.dtype)
        else:
            chosen = tf.broadcast_to(tf.cast(tf.expand_dims(mask, -1), tf.bool), tf.shape(inputs))
            kept = tf.where(chosen, inputs, tf.zeros_like(inputs))
            count = tf.reduce_sum(tf.cast(tf.cast(mask, tf.bool), inputs.dtype))
        sums = allreduce(tf.concat([tf.reduce_sum(kept, axes), count[None]], 0), op=Sum, loss_bound=0.0)
        # Where all is masked, mean and variance are zeros, as Keras has them.
        total = tf.maximum(tf.stop_gradient(sums[-1]), keras.backend.epsilon())
        mean = sums[:-1] / total
        # Not of the square: the difference of two large numbers would lose digits.
        shape = [1] * inputs.shape.rank
        shape[self.axis] = -1
        centered = inputs - tf.reshape(mean, shape)
        if mask is not None:
            centered = tf.where(chosen, centered, tf.zeros_like(centered))
        squares = allreduce(tf.reduce_sum(centered * centered, axes), op=Sum, loss_bound=0.0)
        return mean, squares / total
