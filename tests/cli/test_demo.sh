# demo.sh from its first line to its last, on a machine without a GPU, on one with a CUDA toolkit and no driver, and on
# one with a GPU: its device library is the CUDA backend run by the CPU (QRUN_CUDA_LIBRARY_SIMT), nvidia-smi and nvcc
# are programs that answer as theirs do. Building is left to test_build_choice.sh: what would be built is there already.
. "$QRUN_SOURCE/tests/cli/lib.sh"

tree=$work/tree
mkdir -p "$tree/scripts" "$tree/build/release/cli" "$work/bin"
cp "$QRUN_SOURCE/demo.sh" "$tree/"
ln -s "$QRUN_SOURCE/examples" "$tree/examples"
printf '#!/bin/sh\n' >"$tree/scripts/install-dependencies.sh"
printf '#!/bin/sh\n"%s" --print\n' "$QRUN_SOURCE/scripts/build.sh" >"$tree/scripts/build.sh"
# The program, with shorter answers and a single step of training: kernels on the CPU are slow.
cat >"$tree/build/release/cli/qrun" <<EOF
#!/bin/sh
for word in "\$@"; do
    shift
    case \$word in --epochs) word=--max-steps ;; 12) word=1 ;; 40 | 60) word=4 ;; esac
    set -- "\$@" "\$word"
done
exec "$QRUN" "\$@"
EOF
printf '#!/bin/sh\necho 9.0\n' >"$work/bin/nvidia-smi"
printf '#!/bin/sh\necho sm_90a\n' >"$work/bin/nvcc"
chmod +x "$tree/demo.sh" "$tree"/scripts/* "$tree/build/release/cli/qrun" "$work"/bin/*
mkdir "$work/tools" "$work/toolkit"
for tool in sh dirname timeout grep sort tr sed rm mkdir cat; do ln -s "$(command -v "$tool")" "$work/tools/$tool"; done
ln -s "$work/bin/nvcc" "$work/toolkit/nvcc"

# demo NAME: runs it; it must end well, and with answers after the training.
demo() {
    last="demo.sh, $1"
    (cd "$tree" && timeout 500 ./demo.sh) >"$work/out" 2>"$work/err"
    code=$?
    expect_code 0
    expect_out "After fine-tuning:"
    expect_out "memory      "
    cat "$work/err" >>"$work/out"
}

export QRUN_NVCC=/nonexistent
all=$PATH
PATH="$work/tools"
demo "neither driver nor toolkit"
PATH=$all
expect_true "no GPU is spoken of" sh -c "! grep -q -e 'GPU' -e '^device' '$work/out'"

PATH="$work/toolkit:$work/tools"
demo "a toolkit and no driver"
PATH=$all
expect_out "nvidia-smi shows no GPU, so this build is for the CPU alone"
expect_true "it ran on the CPU" sh -c "! grep -q '^device' '$work/out'"

if [ -n "${QRUN_SANITIZE:-}" ]; then
    echo "not run, kernels on the CPU are too slow under sanitizers: a machine with a GPU"
elif [ -n "${QRUN_CUDA_LIBRARY_SIMT:-}" ]; then
    export QRUN_CUDA_LIBRARY="$QRUN_CUDA_LIBRARY_SIMT"
    PATH="$work/bin:$PATH"
    demo "a GPU"
    expect_out "GPU: building for it, too (90a-real)."
    expect_true "training and the batch of prompts ran on it" test "$(grep -c '^device  *cuda (' "$work/out")" -eq 2
else
    echo "not run, this build has no CUDA backend for the CPU: a machine with a GPU"
fi

finish
