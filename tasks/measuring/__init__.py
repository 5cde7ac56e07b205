"""What models are worth: answers, measures with intervals, figures."""
