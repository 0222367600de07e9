#include "cli/about.h"

#include <stddef.h>

#include "cli/terminal/messages.h"

const char about_program[] =
    "opens an unmodified Hugging Face model folder, holds it in 4 or 8 bits, generates for many "
    "prompts at once, and trains LoRA adapters.";

const about_exit_code about_exit_codes[] = {
    {EXIT_OK, "all went well"},
    {EXIT_SOME_FAILED, "some requests failed and the others were answered; or training diverged"},
    {EXIT_USAGE, "wrong options, arguments or request"},
    {EXIT_FILE, "a model or another file cannot be read or written"},
    {EXIT_MEMORY, "out of memory, or over the memory budget"},
    {EXIT_ENGINE, "the device failed, or qrun has a bug"},
    {EXIT_NO_FIT, "'plan' or '--plan': it would not fit into the memory"},
    {EXIT_INTERRUPTED, "interrupted (Ctrl-C, SIGTERM or SIGHUP); serve then ends with 0"},
    {0, NULL},
};

const about_variable about_environment[] = {
    {"NO_COLOR", "when set, no colours"},
    {"HF_HOME", "where the Hugging Face cache is, for models given by id (or HF_HUB_CACHE, its folder itself)"},
    {"QRUN_FORCE_ISA", "instruction set of the CPU to compute with, of those it has: c, avx2, avx512, avx512-bf16, "
                       "amx-bf16; on Arm neon, neon-bf16. On a GPU sm_80: without Hopper's own instructions"},
    {"QRUN_CUDA_LIBRARY", "path of libqrun_cuda.so, where it is not beside libqrun.so"},
    {"QRUN_CUDA_CUBLASLT", "path of libcublasLt.so; or 0: training does without it"},
    {"QRUN_CUDA_NCCL", "path of libnccl.so.2; or 0: ranks send through host memory"},
    {"QRUN_MPI_LIBRARY", "path of libqrun_mpi.so, where it is not beside libqrun.so"},
    {"QRUN_CUDA_GRAPHS", "0: a GPU's decode steps are not replayed. Like QRUN_CUDA_EARLY_LAUNCH, QRUN_CUDA_RUN_AHEAD "
                         "and QRUN_CUDA_WGMMA, for finding faults"},
    {NULL, NULL},
};
