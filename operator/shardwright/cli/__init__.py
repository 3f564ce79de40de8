"""The command line: run the operator, print the CRD, look at a deployment."""
