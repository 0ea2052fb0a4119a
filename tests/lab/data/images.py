"""Small image folders in the layouts of the real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from lesam.lab.data.domains import Collection


def write_images(root: Path, collection: Collection, count: int = 5) -> None:
    pixels = np.random.RandomState(0)
    for shade, (domain, _) in enumerate(collection.domains.values()):
        for label, kind in enumerate(collection.classes):
            path = root / collection.folder / domain / kind
            path.mkdir(parents=True)
            for number in range(count):
                image = pixels.randint(0, 60, (20, 24, 3)) + 40 * shade
                image[label * 2 : label * 2 + 3] = 255
                Image.fromarray(image.astype(np.uint8)).save(path / f"{number}.png")
