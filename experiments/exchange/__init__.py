"""EXCHANGE. Results of other people's servers in, ours out, in the formats of the tools they use."""
