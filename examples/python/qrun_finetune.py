"""Fine-tuning, with every step as one line.

    python3 qrun_finetune.py path/to/model train.jsonl my-adapter 200

Ctrl-C ends the step, saves a checkpoint and stops; the same command then continues from there, to the bit. From a clone
without `pip install ./python`: PYTHONPATH=python QRUN_LIBRARY=build/release/lib/libqrun.so.0.
"""

import signal
import sys

import qrun


def print_step(m: qrun.TrainMetrics) -> None:
    print(f"step {m.step:4}  loss {m.loss:.4f}  learning rate {m.learning_rate:.2e}  "
          f"{m.n_tokens / m.seconds:.0f} tokens/s", flush=True)


def print_evaluation(m: qrun.TrainMetrics) -> None:
    print(f"step {m.step:4}  evaluation loss {m.loss:.4f}", flush=True)


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit("usage: qrun_finetune.py MODEL DATA.jsonl OUT [STEPS]")
    model, data, out, *steps = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell started this in the background
    try:
        with qrun.Trainer(model, train_data=data, out=out, on_step=print_step, on_evaluation=print_evaluation,
                          eval_split=0.1, seq_len=256, learning_rate=2e-3,
                          max_steps=int(steps[0]) if steps else 0) as trainer:
            info = trainer.info
            print(f"{info.n_examples} examples, {info.total_steps} steps from step {info.first_step}, "
                  f"{info.planned_bytes / 2**20:.1f} MiB", flush=True)
            trainer.run()
    except KeyboardInterrupt:
        print(f"stopped; the same command continues from the checkpoint in {out}")
        sys.exit(130)
    except qrun.Error as error:
        sys.exit(f"qrun_finetune.py: {error}")
    print(f"the adapter is in {out}")


if __name__ == "__main__":
    main()
