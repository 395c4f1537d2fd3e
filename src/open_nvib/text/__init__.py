"""The toolkit for text: data, models, training, and what one does with a trained model. Needs the extra `text`."""
