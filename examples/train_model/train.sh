#!/bin/sh
# Makes the model of examples/model again: composes the corpus, trains the tokenizer, trains the weights from random ones
# with qrun, and measures them. Run it from the root of the repository; what it writes is in out/, or in the folder that
# is given. QRUN names another qrun than that of the release build.
set -eu
here=$(dirname "$0")
qrun=${QRUN:-build/release/cli/qrun}
out=${1:-out}

mkdir -p "$out/start"
python3 "$here/make_corpus.py" --out "$out/corpus.jsonl"
python3 "$here/make_corpus.py" --rendered --out "$out/train.jsonl"
python3 "$here/make_corpus.py" --plain --seed eval --bytes 30000 --out "$out/eval.txt"
python3 "$here/train_tokenizer.py" --corpus "$out/corpus.jsonl" --out "$out/start"
cp "$here/../model/config.json" "$here/../model/generation_config.json" "$out/start/"

# Names are used alike, so training moves their embeddings alike. What tells them apart is what they begin with, and at
# the usual deviation that is too little for the model to learn soon which name to write again: hence 0.09.
"$qrun" finetune --model "$out/start" --data "$out/train.jsonl" --out "$out/model" \
    --full --init random --init-embedding-std 0.09 --seed 1 \
    --seq-len 512 --batch-size 4 --max-steps 3200 --save-every 400 \
    --learning-rate 1e-3 --schedule cosine --warmup 200 --weight-decay 0.1
"$qrun" eval --model "$out/model" --text "$out/eval.txt" --quant f32 --dtype f32
