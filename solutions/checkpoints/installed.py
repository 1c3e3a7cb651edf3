"""Where `make chat` puts a model. workbook.py asks before PyTorch is imported."""

from platformdirs import user_cache_path

INSTALLED = user_cache_path("inference-workbook") / "models"

if __name__ == "__main__":
    print(INSTALLED)
