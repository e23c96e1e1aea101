"""An independent version of LLaDA's sampling loop in numpy: one row, one decision at a time."""

import numpy as np


def reference_decode(predict, prompt, config, mask_id):
    """(canvas, commit step of each position). `predict(canvas)` gives [L] tokens, confidences,
    entropies and margins."""
    canvas = np.array([*prompt, *[mask_id] * config.gen_length])
    commit_step = np.full(len(canvas), -1)
    forward = 0
    for block in range(config.n_blocks):
        start = len(prompt) + block * config.block_length
        inside = range(start, start + config.block_length)
        masks = sum(canvas[i] == mask_id for i in inside)
        step = 0
        while any(canvas[i] == mask_id for i in inside):
            predictions = predict(canvas)
            open_positions = [i for i in inside if canvas[i] == mask_id]
            due = masks // config.steps_per_block + (step < masks % config.steps_per_block)
            for i in chosen(predictions, open_positions, due, config):
                canvas[i] = predictions[0][i]
                commit_step[i] = forward
            step += 1
            forward += 1
    return canvas, commit_step


def chosen(predictions, positions, due, config):
    _, confidence, entropy, margin = predictions
    by = {"low_confidence": confidence, "entropy": -entropy, "margin": margin}[config.remasking]
    best_first = sorted(positions, key=lambda i: (-by[i], i))
    if config.rule.name == "quota":
        return best_first[:due]
    accepted = {best_first[0]}
    if config.rule.name == "threshold":
        accepted |= {i for i in positions if confidence[i] >= np.float32(config.rule.threshold)}
    else:
        cost = {
            i: entropy[i]
            + np.float32(config.rule.distance_penalty) * np.float32(i - min(positions))
            for i in positions
        }
        accepted = {min(positions, key=lambda i: (cost[i], i))}
        accepted |= {i for i in positions if cost[i] < np.float32(config.rule.max_entropy)}
    return accepted
