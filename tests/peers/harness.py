"""Scores an export with lm-evaluation-harness on a task made here, and with `host eval` on the same text: nothing is
downloaded. Prints one JSON line and fails where the nats of the text differ.

    harness.py --host target/release/host --run RUN --export DIR --work DIR
"""

import argparse
import json
import pathlib
import subprocess

import lm_eval
from lm_eval.tasks import TaskManager

TASK = """task: capful_text
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--export", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    work = pathlib.Path(arguments.work)
    work.mkdir(parents=True, exist_ok=True)
    # Shorter than the context: both sides then see a document in one piece.
    texts = [f"the bear number {i} went to the market, and bought {i * 7} apples." for i in range(40)]
    data = work / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (work / "capful_text.yaml").write_text(TASK.format(data=data.resolve()))
    results = lm_eval.simple_evaluate(
        model="hf", model_args=f"pretrained={arguments.export},dtype=float32,add_bos_token=False", device="cpu", batch_size=1,
        tasks=["capful_text"], task_manager=TaskManager(include_path=str(work)), bootstrap_iters=0)
    theirs = results["results"]["capful_text"]["bits_per_byte,none"]
    nats = 0.0
    for text in texts:
        # Each text after the begin mark, which the harness adds, without an end mark.
        ids = json.loads(subprocess.run(
            [arguments.host, "vocab", "--json", "--tokenizer", f"{arguments.export}/tokenizer.json", "--encode", text],
            capture_output=True, text=True, check=True).stdout)["ids"]
        bos = json.loads((pathlib.Path(arguments.export) / "config.json").read_text())["bos_token_id"]
        done = subprocess.run(
            [arguments.host, "logits", "--json", "--run", arguments.run, "--ids", ",".join(map(str, [bos, *ids]))],
            capture_output=True, text=True, check=True)
        import torch
        logits = torch.tensor(json.loads(done.stdout)["logits"][:-1], dtype=torch.float64)
        nats -= logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum().item()
    ours = nats / torch.log(torch.tensor(2.0, dtype=torch.float64)).item() / sum(len(text.encode()) for text in texts)
    print(json.dumps({"lm_eval": lm_eval.__version__, "bits_per_byte": theirs, "ours": ours}))
    assert abs(theirs - ours) <= arguments.tolerance * ours


if __name__ == "__main__":
    main()
