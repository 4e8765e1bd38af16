import heapq, torch


@torch.no_grad()
def backward(root):
    """run the graph of `root` as torch's engine does"""
    start = root.grad_fn
    waiting = {}
    seen = {start}
    stack = [start]
    while stack:
        n = stack.pop()
        for nx, _ in n.next_functions:
            if nx is None:
                continue
            waiting[nx] = waiting.get(nx, 0) + 1
            if nx not in seen:
                seen.add(nx)
                stack.append(nx)
    buf = {start: [torch.ones_like(root)]}
    # first in = highest sequence number
    heap = [(-start._sequence_nr(), 0, start)]
    k = 0
    while heap:
        _, _, n = heapq.heappop(heap)
        grads = buf.pop(n)
        if type(n).__name__ == "AccumulateGrad":
            continue
        out = n.apply(*grads) if isinstance(n, torch.autograd.function.BackwardCFunction) else n(*grads)
        if not isinstance(out, tuple):
            out = (out,)
        for (nx, i), g in zip(n.next_functions, out):
            if nx is None:
                continue
            meta = nx._input_metadata
            if nx not in buf:
                buf[nx] = [None] * len(meta)
            if g is not None:
                m = meta[i]
                if tuple(g.shape) != tuple(m.shape):
                    g = g.sum_to_size(m.shape)
                if g.dtype != m.dtype:
                    g = g.to(m.dtype)
                b = buf[nx]
                b[i] = g if b[i] is None else b[i] + g
            waiting[nx] -= 1
            if not waiting[nx]:
                k += 1
                heapq.heappush(heap, (-nx._sequence_nr(), k, nx))
