"""Every field of qrun.h that a library message can name has an option of that name, or is listed here as having none.

    python3 check_api_names.py path/to/qrun.h path/to/api_names path/to/qrun
"""

import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import generate_api  # noqa: E402

# The struct, the commands whose options fill it, and its fields that have no option.
STRUCTS = [
    ("qrun_context_params", "generate finetune plan", ""),
    ("qrun_model_params", "generate finetune", "random_weights progress progress_user shard_parameters tensor_rank"),
    ("qrun_session_params", "generate", "kv_tokens sequence_tokens max_waiting_bytes"),
    ("qrun_request_params", "generate", "prompt_bytes token_ids n_token_ids messages_json generation_json has_seed n_stop n_stop_token_ids max_length prompt_logprobs prompt_only pooling answer_forms n_answer_forms on_event user"),
    ("qrun_eval_params", "eval", "progress progress_user"),
    ("qrun_mixed_params", "quantize", "text_bytes token_ids n_token_ids progress progress_user"),
    ("qrun_quantize_params", "quantize", "progress progress_user mixed"),
    ("qrun_merge_params", "merge", "progress progress_user"),
    ("qrun_export_params", "export", "progress progress_user check_only"),
    ("qrun_train_data", "finetune", "n_train_data n_data_weights n_eval_data cache_folder random_tokens"),
    ("qrun_train_lora", "finetune", ""),
    ("qrun_train_weights", "finetune", ""),
    ("qrun_train_preference", "finetune", ""),
    ("qrun_train_optimization", "finetune", ""),
    ("qrun_train_batches", "finetune", ""),
    ("qrun_train_memory", "finetune", ""),
    ("qrun_train_evaluation", "finetune", ""),
    ("qrun_train_saving", "finetune", ""),
    ("qrun_train_ranks", "finetune", "plan_rank"),
]


def main():
    structs = generate_api.parse(pathlib.Path(sys.argv[1]).read_text()).structs
    groups = {field.base for field in structs["qrun_train_params"] if field.base.startswith("qrun_train_")}
    unlisted = groups - {name for name, _, _ in STRUCTS} - {"qrun_train_callbacks"}
    if unlisted:
        sys.exit(f"groups of qrun_train_params that this test does not know: {unlisted}")
    n_fields = 0
    for struct, commands, without in STRUCTS:
        known = ""
        for command in commands.split():
            known += subprocess.check_output([sys.argv[3], "help", command, "--all"], text=True)
        fields = [field.name for field in structs[struct] if field.name != "struct_size"]
        options = subprocess.check_output([sys.argv[2], *fields], text=True).splitlines()
        for field, option in zip(fields, options, strict=True):
            n_fields += 1
            name, _, value = option.partition(" ")
            line = re.search(rf"^ +(?:-\w, +)?{name}(?![\w-]).*$", known, re.M)
            if (line is None) != (field in without.split()):
                sys.exit(f"{struct}.{field}: qrun help {commands} has {'no' if line is None else 'an'} option {name}")
            if value and not re.search(rf"[ |]{value}\b", line.group(0)):
                sys.exit(f"{struct}.{field}: {name} has no value {value}")
    print(f"{n_fields} fields")


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main()
