"""`python -m open_nvib` is `nvib`; `torchrun -m open_nvib train …` trains in several processes."""

from open_nvib.cli import main

if __name__ == "__main__":
    main()
