"""Trains torch_lm.py's model on a real text with PyTorch and prints validation loss, for comparison with `host train`.

    python3 torch_text.py tokens TRAIN.jsonl VAL.jsonl DIR            # byte-level BPE of 10,000, DIR/tok.json, train.bin, val.json
    python3 torch_text.py train DIR --steps 2500 --lr 1e-3 [--order random|consecutive|lanes|pool:4096] [--muon 0.02] [--stop N] [--f32] [--preset pythia70m ...]

Sequences are T tokens; --order random: a permutation of all, each epoch; consecutive: in the order of the shuffled
documents; lanes: each row of the batch reads its own part of the text; pool:N: consecutive through a pool of N, drawn at random.
Cosine to a tenth, warm-up of 100 steps, decay 0.1, clip 1, betas 0.9 and 0.95, GPT-NeoX's initialisation, bf16 autocast
(--f32: single precision).
Validation: whole documents in pieces of T, each token's loss once.
"""
import json, math, random, sys, time
import numpy as np

def tokens(train, val, out):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    texts = [json.loads(line)["text"] for line in open(train)]
    t = Tokenizer(models.BPE()); t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False); t.decoder = decoders.ByteLevel()
    random.seed(1)
    t.train_from_iterator(random.sample(texts, min(6000, len(texts))), trainers.BpeTrainer(
        vocab_size=10000, special_tokens=["<bos>", "<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.save(f"{out}/tok.json"); random.seed(2); random.shuffle(texts)
    encode = lambda part: [[0] + e.ids + [1] for e in t.encode_batch(part, add_special_tokens=False)]
    ids = [np.array(d, dtype=np.uint16) for i in range(0, len(texts), 2000) for d in encode(texts[i:i + 2000])]
    np.concatenate(ids).tofile(f"{out}/train.bin")
    held = [json.loads(line)["text"] for line in open(val)]
    json.dump({"ids": encode(held), "bytes": sum(len(s.encode()) for s in held)}, open(f"{out}/val.json", "w"))
    print(json.dumps({"tokens": int(sum(map(len, ids)))}))

def train(out, argv):
    def take(flag, default=None, value=True):
        if flag not in argv: return default
        i = argv.index(flag); got = argv[i + 1] if value else True; del argv[i:i + 1 + value]; return got
    kind, muon, stop = take("--order", "random"), float(take("--muon", 0)), int(take("--stop", 10**9))
    single = take("--f32", False, value=False)                # no autocast, no TF32
    preset = [] if "--arch" in argv or "--preset" in argv else ["--preset", "pythia70m"]
    sys.argv = ["torch_lm.py", *preset, "--device", "cuda", "--dtype", "bf16-master", "--vocab", "10000", "--seq", "512", "--batch", "64",
                "--compile", "1", "--loss", "full-lp", *argv]
    import torch, torch_lm
    a = torch_lm.parse(); torch.manual_seed(a.seed); torch.set_float32_matmul_precision("highest" if single else "high")
    mixed = lambda: torch.autocast("cuda", dtype=torch.bfloat16, enabled=not single)
    m = torch_lm.LM(a).cuda()
    for n, p in m.named_parameters():
        if p.dim() > 1:
            last = n.endswith(("out.weight", "down.weight"))
            torch.nn.init.normal_(p, 0, 2 / (a.layers * math.sqrt(a.d)) if last else math.sqrt(2 / (5 * a.d)))
    f, data = torch.compile(m, dynamic=False), torch.from_numpy(np.fromfile(f"{out}/train.bin", dtype=np.uint16).astype(np.int64))
    hidden = [p for n, p in m.named_parameters() if p.dim() == 2 and "blocks" in n] if muon else []
    ours, momenta = {id(p) for p in hidden}, [torch.zeros_like(p) for p in hidden]
    opt = torch.optim.AdamW([dict(params=[p for p in m.parameters() if p.dim() > 1 and id(p) not in ours], weight_decay=a.wd),
                             dict(params=[p for p in m.parameters() if p.dim() <= 1], weight_decay=0.0)], lr=a.lr, betas=(0.9, 0.95), fused=True)
    @torch.compile
    def orthogonal(g):                                        # Newton-Schulz, five steps (Jordan et al. 2024)
        x = g.bfloat16(); tall = x.size(0) > x.size(1); x = x.T if tall else x; x = x / (x.norm() + 1e-7)
        for _ in range(5): s = x @ x.T; x = 3.4445 * x + (-4.7750 * s + 2.0315 * (s @ s)) @ x
        return x.T if tall else x
    def validate():
        v, rows, nll, n = json.load(open(f"{out}/val.json")), [], 0.0, 0
        for ids in v["ids"]:
            for i in range(0, len(ids) - 1, a.seq):
                x = ids[i:i + a.seq + 1]; pad = a.seq - len(x) + 1; rows.append((x[:-1] + [0] * pad, x[1:] + [-100] * pad))
        with torch.no_grad(), mixed():
            for i in range(0, len(rows), 16):
                x, y = (torch.tensor([r[k] for r in rows[i:i + 16]]).cuda() for k in (0, 1)); c = (y >= 0).sum().item(); nll += m(x, y).item() * c; n += c
        return {"val_loss": nll / n, "bits_per_byte": nll / v["bytes"] / math.log(2), "val_tokens": n}
    count, gen, k = (len(data) - 1) // a.seq, torch.Generator().manual_seed(a.seed), 0
    def arrange():
        if kind == "random": return torch.randperm(count, generator=gen)
        if kind == "lanes": return torch.arange(count // a.batch * a.batch).view(a.batch, -1).T.flatten()
        if kind.startswith("pool:"):
            size = int(kind[5:]); pool = list(range(min(size, count))); following = len(pool); out_ = []
            pick = torch.randint(0, 1 << 62, (count,), generator=gen).tolist()
            for r in pick:
                j = r % len(pool); out_.append(pool[j])
                if following < count: pool[j] = following; following += 1
                else: pool[j] = pool[-1]; pool.pop()
                if not pool: break
            return torch.tensor(out_)
        return torch.arange(count)
    order, start = arrange(), None
    for s in range(min(a.steps, stop)):
        if s == 20: torch.cuda.synchronize(); start = time.time()
        at = order[k:k + a.batch]; k += a.batch
        if k + a.batch > len(order): order, k = arrange(), 0
        t = torch.stack([data[i * a.seq:(i + 1) * a.seq + 1] for i in at]).cuda(non_blocking=True)
        with mixed(): loss = f(t[:, :-1], t[:, 1:])
        loss.backward(); torch.nn.utils.clip_grad_norm_(m.parameters(), a.clip)
        w = (s + 1) / 100 if s < 100 else 0.1 + 0.45 * (1 + math.cos(math.pi * (s - 100) / (a.steps - 100)))
        for g in opt.param_groups: g["lr"] = a.lr * w
        for p, b in zip(hidden, momenta):
            b.mul_(0.95).add_(p.grad); u = p.grad.add(b, alpha=0.95); parts = u.chunk(3, 0) if p.size(0) == 3 * p.size(1) else [u]
            u = torch.cat([orthogonal(x) * max(1, x.size(0) / x.size(1)) ** 0.5 for x in parts]).float()
            p.data.mul_(1 - muon * w * a.wd).add_(u, alpha=-muon * w); p.grad = None
        opt.step(); m.zero_grad(set_to_none=True)
        if (s + 1) % 250 == 0: print(json.dumps({"step": s + 1, "loss": loss.item(), **validate()}), flush=True)
    torch.cuda.synchronize(); print(json.dumps({"tokens_per_s": (s - 19) * a.batch * a.seq / (time.time() - start)}))

if __name__ == "__main__":
    tokens(*sys.argv[2:5]) if sys.argv[1] == "tokens" else train(sys.argv[2], sys.argv[3:])
