"""What is learnt: classification, regression and their losses."""
