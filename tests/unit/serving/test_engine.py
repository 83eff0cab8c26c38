"""An engine that several threads call at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from vitlab.serving.engine import Attend, AttentionMaps, Classes, Classify, Compare, Engine, Task
from web.live import small_model


def pictures(num: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 256, (num, 24, 16, 3), np.uint8))


def test_tasks_at_once_do_not_see_each_other() -> None:
    model = small_model()
    engine = Engine(model, "small")
    images = pictures(8)
    tasks: list[Task] = [Classify(), Attend(), Attend(layer=1), Compare(2)]
    asked = [(task, images[i]) for _ in range(20) for i in range(8) for task in tasks]
    alone = {(task, image.tobytes()): engine.run(task, [image])[0] for task, image in asked}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda pair: engine.run(pair[0], [pair[1]])[0], asked))
    for (task, image), answer in zip(asked, answers, strict=True):
        wanted = alone[task, image.tobytes()]
        for name, values in vars(wanted).items():
            if values is not None:
                np.testing.assert_allclose(getattr(answer, name), values, rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        logits = model(torch.cat([model.preprocess(image) for image in images]))
    for image, row in zip(images, logits.softmax(dim=-1), strict=True):
        found = alone[Classify(), image.tobytes()]
        assert isinstance(found, Classes)
        np.testing.assert_allclose(found.probabilities, row.sort(descending=True).values.numpy(), atol=1e-6)
    assert isinstance(alone[Attend(), images[0].tobytes()], AttentionMaps)


def test_a_thread_has_its_part_of_the_processors_and_others_keep_theirs() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        engine = Engine(small_model(), "small")
        with ThreadPoolExecutor(1, initializer=engine.share, initargs=(2,)) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
        assert (engine.workers, torch.get_num_threads()) == (2, 4)
        torch.set_num_threads(1)
        assert Engine(small_model(), "small").workers == 1
    finally:
        torch.set_num_threads(before)
