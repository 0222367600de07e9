"""Training through the package is training by the program, to the bit."""

import signal
import threading
import unittest

import common
import qrun
from common import MODEL, PIRATE, program, python

SHAPE = {"max_steps": 6, "seq_len": 64, "learning_rate": 2e-3, "eval_split": 0.1, "eval_every": 3, "save_every": 2}
OPTIONS = ["--max-steps", "6", "--seq-len", "64", "--learning-rate", "2e-3", "--eval-split", "0.1", "--eval-every", "3",
           "--save-every", "2"]
FILE = "adapter_model.safetensors"


class Training(common.Case):
    @classmethod
    def setUpClass(cls):
        import pathlib
        import tempfile
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        whole = pathlib.Path(folder.name) / "whole"
        program("finetune", "--model", MODEL, "--data", PIRATE, "--out", str(whole), "--quiet", *OPTIONS)
        cls.expected = (whole / FILE).read_bytes()

    def adapter(self, name):
        return (self.folder / name / FILE).read_bytes()

    def test_bits(self):
        steps, evaluations, threads = [], [], set()

        def on_step(metrics):
            steps.append(metrics)
            threads.add(threading.current_thread())

        info = qrun.finetune(MODEL, train_data=[PIRATE], out=self.folder / "a", on_step=on_step,
                             on_evaluation=evaluations.append, **SHAPE)
        self.assertEqual(self.adapter("a"), self.expected)
        self.assertEqual([m.step for m in steps], [1, 2, 3, 4, 5, 6])
        self.assertEqual([m.step for m in evaluations], [3, 6])
        self.assertEqual(threads, {threading.current_thread()})
        self.assertEqual((info.total_steps, info.data_format, info.best_loss),
                         (6, "messages", min(m.loss for m in evaluations)))

    def test_pairs_of_answers(self):
        pairs, steps = PIRATE.replace("pirate.jsonl", "pairs.jsonl"), []
        qrun.finetune(MODEL, train_data=pairs, out=self.folder / "d", objective="dpo", beta=0.2, max_steps=3, seq_len=128,
                      learning_rate=2e-3, on_step=steps.append)
        program("finetune", "--model", MODEL, "--data", pairs, "--out", str(self.folder / "e"), "--quiet", "--objective",
                "dpo", "--beta", "0.2", "--max-steps", "3", "--seq-len", "128", "--learning-rate", "2e-3")
        self.assertEqual(self.adapter("d"), self.adapter("e"))
        last = steps[-1].rewards
        self.assertEqual(last.accuracy, 1)
        self.assertGreater(last.n_pairs, 0)
        self.assertAlmostEqual(last.margin, last.chosen - last.rejected)
        with self.assertRaisesRegex(qrun.InputError, "objective=dpo"):
            qrun.finetune(MODEL, train_data=pairs, out=self.folder / "f", max_steps=1)

    def test_own_loop(self):
        with qrun.Trainer(MODEL, train_data=PIRATE, out=self.folder / "b", **SHAPE) as trainer:
            taken = []
            while trainer.next != "done":
                taken.append(trainer.next)
                trainer.step() if taken[-1] == "step" else trainer.evaluate()
            trainer.save()
            trainer.export()
            self.assertEqual(taken, ["step"] * 3 + ["evaluate"] + ["step"] * 3 + ["evaluate"])
            self.assertEqual(trainer.files[0].path, PIRATE)
            self.assertIn("«", trainer.show_example(0))
        self.assertEqual(self.adapter("b"), self.expected)
        with self.assertRaisesRegex(qrun.ArgumentError, "the trainer is closed"):
            trainer.step()

    def test_replanned(self):
        with qrun.Trainer(MODEL, train_data=PIRATE, out=self.folder / "p", **SHAPE) as trainer:
            trainer.step()
            trainer.replan()
            self.assertEqual((trainer.info.first_step, trainer.info.n_replans), (2, 1))
            self.assertIn("continues after step 1", trainer.info.replanned)
            trainer.run()
        self.assertEqual(self.adapter("p"), self.expected)

    def test_stopped(self):
        """By an exception in a listener, by cancel from another thread: the next call continues, to the bit."""
        def stop_at(step):
            def listener(metrics):
                if metrics.step == step:
                    raise RuntimeError("enough")
            return listener

        with self.assertRaisesRegex(RuntimeError, "enough"):
            qrun.finetune(MODEL, train_data=PIRATE, out=self.folder / "c", on_step=stop_at(2), **SHAPE)
        with qrun.Trainer(MODEL, train_data=PIRATE, out=self.folder / "c", **SHAPE) as trainer:
            self.assertEqual(trainer.info.first_step, 3)
            trainer.cancel()
            with self.assertRaises(qrun.CancelledError):
                trainer.run()
            trainer.run()
        self.assertEqual(self.adapter("c"), self.expected)
        with self.assertRaisesRegex(qrun.InputError, "(?i)other|differ|another"):
            qrun.finetune(MODEL, train_data=PIRATE, out=self.folder / "c", **{**SHAPE, "learning_rate": 1e-3})

    def test_listener_that_calls(self):
        """A listener may look at the run; another call of the trainer is refused, and ends this one."""
        seen = []
        with qrun.Trainer(MODEL, train_data=PIRATE, out=self.folder / "i",
                          on_step=lambda m: (seen.append(trainer.info.total_steps), trainer.save()), **SHAPE) as trainer:
            with self.assertRaisesRegex(qrun.BusyError, "in a call already"):
                trainer.run()
        self.assertEqual(seen, [6])

    def test_listener_of_one_step(self):
        """An exception of a listener comes when the step is done, and ends nothing else."""
        def on_step(metrics):
            if metrics.step == 1:
                raise KeyError("mine")

        def on_evaluation(metrics):
            raise KeyError("mine too")

        with qrun.Trainer(MODEL, train_data=PIRATE, out=self.folder / "j", on_step=on_step, on_evaluation=on_evaluation,
                          **SHAPE) as trainer:
            with self.assertRaisesRegex(KeyError, "mine"):
                trainer.step()
            self.assertEqual([trainer.step().step, trainer.step().step], [2, 3])
            with self.assertRaisesRegex(KeyError, "mine too"):
                trainer.evaluate()
            self.assertEqual(trainer.step().step, 4)

    def test_infos(self):
        """A switch beside a count of the same name is none of an array."""
        told = qrun.info.info_of(qrun.info.TrainMetrics, qrun._api.TrainMetrics(skipped=True, n_skipped=2))
        self.assertEqual((told.skipped, told.n_skipped), (True, 2))

    def test_modules(self):
        """Names of modules are a text with commas, or a list as PEFT has it; files are ours when the run is over."""
        infos = [qrun.finetune(MODEL, train_data=PIRATE, out=self.folder / name, target_modules=modules, max_steps=1,
                               seq_len=64) for name, modules in (("k", "q_proj,v_proj"), ("l", ["q_proj", "v_proj"]))]
        self.assertEqual(infos[0].n_trainable, infos[1].n_trainable)
        layer = qrun.finetune(MODEL, train_data=PIRATE, out=self.folder / "m", target_modules="q_proj,v_proj",
                              max_steps=1, seq_len=64, layers_to_transform=[0, 3])
        self.assertEqual(2 * layer.n_trainable, infos[0].n_trainable)
        self.assertEqual(self.adapter("k"), self.adapter("l"))
        self.assertEqual([file.path for file in infos[0].files], [PIRATE])

    def test_progress(self):
        told = []
        qrun.finetune(MODEL, train_data=PIRATE, out=self.folder / "d",
                      progress=lambda done, total: told.append((done, total)), **SHAPE)
        self.assertGreater(len(told), 3)

        def refuse(done, total):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            qrun.finetune(MODEL, train_data=PIRATE, out=self.folder / "e", progress=refuse, **SHAPE)

    def test_full(self):
        info = qrun.finetune(MODEL, train_data=PIRATE, out=self.folder / "f", full=True, max_steps=2, seq_len=64)
        self.assertGreater(info.n_trainable, 10**6)
        with qrun.Model(self.folder / "f") as model:
            self.assertEqual(len(model.generate("x", max_tokens=2).token_ids), 2)

    def test_refused(self):
        for options, kind, words in (({"train_data": "/nowhere.jsonl"}, qrun.NotFoundError, "nowhere.jsonl"),
                                     ({"rank": 1000}, qrun.ArgumentError, "rank"),
                                     ({"memory_bytes": 1000}, qrun.OutOfMemoryError, "memory")):
            with self.assertRaisesRegex(kind, words):
                qrun.finetune(MODEL, **{"train_data": PIRATE, "out": self.folder / "g", **options})
        with self.assertRaisesRegex(TypeError, "'steps'"):
            qrun.finetune(MODEL, train_data=PIRATE, out=self.folder / "g", steps=1)

    def test_interrupt(self):
        """Ctrl-C in the middle of a step: a checkpoint, KeyboardInterrupt, and the same run continues."""
        code = f"""
try:
    qrun.finetune(MODEL, train_data=PIRATE, out={str(self.folder / 'h')!r}, max_steps=100000, seq_len=256, batch_size=8,
                  on_step=lambda m: print("step", flush=True) if m.step == 1 else None)
except KeyboardInterrupt:
    print(any(name.startswith("checkpoint-") for name in os.listdir({str(self.folder / 'h')!r})))
"""
        process = python(code)
        self.assertEqual(process.stdout.readline(), "step\n")
        process.send_signal(signal.SIGINT)
        self.expect(process, 0, "True")


if __name__ == "__main__":
    common.main()
