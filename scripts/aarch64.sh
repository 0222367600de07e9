#!/usr/bin/env bash
# Builds qrun for 64-bit Arm with Debian's cross-compiler and runs its tests under qemu-user: the ops, and models against
# their goldens, on plain NEON and with BFDOT (tests/kernels and tests/runtime say which runs where), and what depends on
# bytes and characters; then compares an answer of portable numerics with this machine's. Cases of ops run as under
# sanitizers (check.h). It says nothing about speed.
#   scripts/aarch64.sh [TEST…]     these programs, or those below: a quarter of an hour on two cores at most
# For Debian: Ubuntu keeps packages for Arm on other servers.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$PWD/build/aarch64-root
tests=("$@")
if [ ${#tests[@]} -eq 0 ]; then
    tests=(test_ops test_goldens test_self_check test_base test_tokenizer test_tokenizer_unicode test_safetensors)
fi

# Libraries for Arm, unpacked into a folder of their own: some cannot be installed beside those of this machine. apt
# downloads and verifies them, with its lists there too.
fetch_root() {
    [ ! -e "$root/complete" ] || return 0
    local package link
    rm -rf "$root"
    mkdir -p "$root/apt/lists/partial" "$root/apt/archives/partial"
    : >"$root/apt/status"
    local apt=(apt-get -q=2 -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
        -o Dir::State="$root/apt" -o Dir::State::status="$root/apt/status" -o Dir::Cache="$root/apt"
        -o APT::Install-Recommends=false -o Dpkg::Use-Pty=0 -o Debug::NoLocking=1)
    "${apt[@]}" update
    "${apt[@]}" install --yes --download-only libc6-dev libcjson-dev libedit-dev libevent-dev libpcre2-dev libssl-dev \
        libutf8proc-dev libyaml-dev libzstd-dev zlib1g-dev >/dev/null
    for package in "$root"/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
    find "$root/lib" "$root/usr" -type l -lname '/*' | while read -r link; do
        ln -sfnr "$root$(readlink "$link")" "$link"
    done
    rm -rf "$root/apt"
    touch "$root/complete"
}

# Portable numerics: the answer, with its log-probabilities, is that of this machine's own build.
same_answer() {
    local answers
    answers=$(mktemp -d)
    cmake --preset release >/dev/null
    cmake --build --preset release --target qrun -- --quiet
    cmake --build --preset aarch64 --target qrun -- --quiet
    answer build/release/cli/qrun >"$answers/here"
    answer qemu-aarch64 -L "$root" build/aarch64/cli/qrun >"$answers/arm"
    cmp "$answers/here" "$answers/arm"
    rm -r "$answers"
    echo "portable numerics: the same answer as here"
}
answer() {
    "$@" generate --model examples/model --prompt Ahoy --max-tokens 20 --logprobs 3 --json --numerics portable --seed 7 \
        --temperature 0.8 | sed 's/"times":{[^}]*},//'
}

# How many cases ran on which instruction set, as the programs said themselves; none on one of them is an error.
say_what_ran() {
    local isa ops models
    for isa in neon neon-bf16; do
        ops=$(grep -cx "backend cpu/$isa" "$log" || true)
        models=$(grep -cx "instruction set $isa" "$log" || true)
        echo "$isa: $ops cases of test_ops, $models of test_goldens"
        if [ "$ops" -eq 0 ] || [ "$models" -eq 0 ]; then
            echo "aarch64.sh: not tested on $isa" >&2
            exit 1
        fi
    done
}

scripts/install-dependencies.sh gcc-aarch64-linux-gnu qemu-user
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
    command -v "$tool" >/dev/null || { echo "aarch64.sh: no $tool; nothing was tested" >&2 && exit 1; }
done
fetch_root
cmake --preset aarch64 >/dev/null
cmake --build --preset aarch64 --target "${tests[@]}" -- --quiet
pattern=$(printf '|^%s(_neon.*)?$' "${tests[@]}") # a program, or its cases
log=build/aarch64/Testing/Temporary/LastTest.log
ctest --test-dir build/aarch64 -j "${QRUN_JOBS:-$(nproc)}" --output-on-failure --no-tests=error -R "${pattern#|}"
if [ $# -eq 0 ]; then
    say_what_ran
    same_answer
fi
