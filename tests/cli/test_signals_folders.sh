# Signals while a large folder is read: loading for each command, quantize and merge. Its weights are holes of a sparse
# file, so it takes no disk, and reading it takes far longer than the second after which the signal comes.
. "$QRUN_SOURCE/tests/cli/lib.sh"

layers=200 hidden=2048 inner=5504

# safetensors FILE "NAME ROWS COLUMNS"… on stdin: a file of BF16 zeros. No columns: one dimension.
safetensors() {
    awk -v q='"' '{
        n = $2 * (NF > 2 ? $3 : 1) * 2
        shape = NF > 2 ? $2 "," $3 : $2
        printf "%s%s%s%s:{%sdtype%s:%sBF16%s,%sshape%s:[%s],%sdata_offsets%s:[%.0f,%.0f]}", (at > 0 ? "," : "{"),
            q, $1, q, q, q, q, q, q, q, shape, q, q, at, at + n
        at += n
    } END { print "}" }' >"$work/header"
    n_header=$(wc -c <"$work/header")
    bytes=""
    rest=$n_header
    for _ in 1 2 3 4 5 6 7 8; do
        bytes="$bytes\\$(printf %o $((rest % 256)))"
        rest=$((rest / 256))
    done
    # shellcheck disable=SC2059 # the octal digits are the format
    printf "$bytes" >"$1"
    cat "$work/header" >>"$1"
    n_data=$(sed 's/.*,\([0-9]*\)\]}}$/\1/' "$work/header")
    truncate -s $((8 + n_header + n_data)) "$1"
}

mkdir "$work/large" "$work/adapter"
cp "$model"/tokenizer* "$work/large"
sed -e "s/\"hidden_size\": 192/\"hidden_size\": $hidden/" -e "s/\"intermediate_size\": 512/\"intermediate_size\": $inner/" \
    -e "s/\"num_hidden_layers\": 4/\"num_hidden_layers\": $layers/" "$model/config.json" >"$work/large/config.json"
awk -v layers=$layers -v h=$hidden -v inner=$inner 'BEGIN {
    print "model.embed_tokens.weight", 2048, h
    print "model.norm.weight", h
    for (i = 0; i < layers; i++) {
        p = "model.layers." i "."
        print p "self_attn.q_proj.weight", 192, h
        print p "self_attn.k_proj.weight", 64, h
        print p "self_attn.v_proj.weight", 64, h
        print p "self_attn.o_proj.weight", h, 192
        print p "mlp.gate_proj.weight", inner, h
        print p "mlp.up_proj.weight", inner, h
        print p "mlp.down_proj.weight", h, inner
        print p "input_layernorm.weight", h
        print p "post_attention_layernorm.weight", h
    }
}' | safetensors "$work/large/model.safetensors"
printf '%s\n' "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight 1 $hidden" \
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight 192 1" |
    safetensors "$work/adapter/adapter_model.safetensors"
echo '{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"], "layers_to_transform": [0]}' \
    >"$work/adapter/adapter_config.json"
echo '{"text": "Once upon a time"}' >"$work/data.jsonl"

# The signal comes while the folder is read.
input=/dev/null
ready=
leaves_nothing() {
    ends_soon "$@"
    expect_true "and leaves nothing" test "$(find "$work" -name 'result*' | wc -l)" -eq 0
}

leaves_nothing TERM generate --model "$work/large" --prompt Once
leaves_nothing INT generate --model "$work/large" --prompt Once --quant bf16 --memory 20GiB
leaves_nothing HUP eval --model "$work/large" --text "$work/data.jsonl"
leaves_nothing TERM chat --model "$work/large"
leaves_nothing INT finetune --model "$work/large" --data "$work/data.jsonl" --out "$work/result"
leaves_nothing TERM quantize --model "$work/large" --out "$work/result"
leaves_nothing HUP quantize --model "$work/large" --quant int8 --out "$work/result"
leaves_nothing INT merge --model "$work/large" --adapter "$work/adapter" --out "$work/result"
finish
