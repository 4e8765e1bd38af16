"""A few pictures of a square each, for `yolo train`: python yolo_data.py FOLDER."""

import sys
from pathlib import Path

import cv2
import numpy as np

SIDE = 64


def picture(random):
    """Return a noisy picture with a square in it, and where the square is."""
    image = random.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
    x, y = random.integers(8, 40, 2)
    image[y : y + 16, x : x + 16] = (0, 0, 255)
    return image, f"0 {(x + 8) / SIDE} {(y + 8) / SIDE} 0.25 0.25\n"


def main(folder):
    random = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 4)):
        images, labels = folder / "images" / part, folder / "labels" / part
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for number in range(count):
            image, label = picture(random)
            cv2.imwrite(str(images / f"{number}.png"), image)
            (labels / f"{number}.txt").write_text(label)
    (folder / "data.yaml").write_text(
        f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n  0: square\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
