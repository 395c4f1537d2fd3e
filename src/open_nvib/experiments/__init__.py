"""The paper's figures and experiments. They need the extra `figures`; the core library does not."""
