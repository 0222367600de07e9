"""What can be read from the text of nvdisasm without running a kernel: its registers, its spills, and its main loop.
For cuda_static.py. Standard library only.

The main loop is the innermost loop with the most matrix products: the instructions from a label to the backward branch
to it. All of them count, those under a predicate too. Where asked for, it is the shortest of the innermost ones: of a
kernel that has a loop for what is whole and another one for the rest.
"""

import dataclasses
import re

INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T0-9]+\s+)?([A-Z][A-Z0-9_.]*)(.*?);")
LABEL = re.compile(r"^\s*(\.L_x_\d+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")
WORD_OF = re.compile(r"\.word\s+index@\((\S+)\)")
WORD = re.compile(r"\.word\s+0x([0-9a-f]+)")
REGISTER_LIMIT, REGISTER_UNIT = 64 * 1024, 256  # of a multiprocessor, and what a warp's are a multiple of


@dataclasses.dataclass
class Loop:
    instructions: int = 0  # of a warp, once through
    products: int = 0      # HMMA, IMMA, HGMMA
    load_bytes: int = 0    # of a lane from device memory
    shared_cycles: int = 0  # of a multiprocessor's shared memory, for a warp, where no two lanes meet in a bank

    def per_weight(self, weights_of_a_product):
        """Thread instructions for a weight: a warp's are those of 32 lanes."""
        return self.instructions * 32 / (self.products * weights_of_a_product)


@dataclasses.dataclass
class Kernel:
    symbol: str
    registers: int = 0
    max_threads: int = 0      # of __launch_bounds__; 0: not said
    local_accesses: int = 0   # instructions: spills, and arrays indexed at run time
    ahead_bytes: int = 0      # of a lane: what is loaded and kept out of the cache before the kernel waits for another
    body: list = dataclasses.field(default_factory=list)  # (opcode, operands), and (None, label)

    def main_loop(self, innermost=False):
        return main_loop(self.body, innermost)

    def blocks_at_once(self, threads, shared_bytes, shared_limit):
        """On a multiprocessor: what registers, threads and shared memory leave room for, 1 KiB of it a block's own."""
        warp = -(-self.registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
        return min(REGISTER_LIMIT // warp // (threads // 32), 2048 // threads, 32,
                   shared_limit // (shared_bytes + 1024))


def bytes_of(opcode):
    """Of a lane's load: LDG.E.128 has 16."""
    parts = opcode.split(".")
    for size in (128, 64):
        if str(size) in parts:
            return size // 8
    return next((n for name, n in (("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2)) if name in parts), 4)


def shared_cycles_of(opcode):
    """Of a warp's access to shared memory, which gives 128 bytes a cycle."""
    parts = opcode.split(".")
    if parts[0] == "LDSM":
        return int(parts[-1]) if parts[-1] in ("2", "4") else 1
    return max(1, bytes_of(opcode) * 32 // 128) if parts[0] in ("LDS", "STS") else 0


def main_loop(body, innermost):
    at = {text: i for i, (opcode, text) in enumerate(body) if opcode is None}
    best, best_length, loops = Loop(), 0, []
    for end, (opcode, operands) in enumerate(body):
        target = TARGET.search(operands) if opcode == "BRA" else None
        begin = at.get(target.group(1), end) if target else end
        if begin >= end:
            continue
        inside = [op for op, _ in body[begin:end + 1] if op is not None]
        loop = Loop(len(inside), sum(op.startswith(("HMMA", "IMMA", "HGMMA")) for op in inside),
                    sum(bytes_of(op) for op in inside if op.startswith(("LDG", "LDGSTS"))),
                    sum(map(shared_cycles_of, inside)))
        if loop.products and not any(begin <= inner[0] and inner[1] <= end for inner in loops):
            loops.append((begin, end, loop))
        nested = best_length and loop.products == best.products and len(inside) < best_length
        if loop.products > best.products or nested:
            best, best_length = loop, len(inside)
    if innermost and loops:  # an inner loop ends before the one around it, or with it
        return min((loop for _, _, loop in loops), key=lambda loop: loop.instructions / loop.products)
    return best if best.products else None


def kernels_of(text):
    """All kernels of one cubin, by their symbol."""
    kernels, current, attribute, owner = {}, None, "", None
    registers, threads, word = {}, {}, None
    for line in text.splitlines():
        if line.startswith(".text."):
            current = Kernel(line[len(".text."):-1])
            kernels[current.symbol] = current
            continue
        if line.startswith("//----"):
            current = None
            owner = line.split()[1].removeprefix(".nv.info.")
            continue
        if "nvinfo : " in line:
            attribute, word = line.split("nvinfo : ")[1].strip(), None
            continue
        if current is None:
            if attribute == "EIATTR_REGCOUNT":
                named = WORD_OF.search(line)
                value = WORD.search(line)
                if named:
                    word = named.group(1)
                elif value and word:
                    registers[word], word = int(value.group(1), 16), None
            elif attribute == "EIATTR_MAX_THREADS" and WORD.search(line):
                threads[owner] = threads.get(owner, 1) * int(WORD.search(line).group(1), 16)
            continue
        label, instruction = LABEL.match(line), INSTRUCTION.match(line)
        if label:
            current.body.append((None, label.group(1)))
        elif instruction:
            current.body.append(instruction.groups())
    for kernel in kernels.values():
        kernel.registers = registers.get(kernel.symbol, 0)
        kernel.max_threads = threads.get(kernel.symbol, 0)
        opcodes = [op for op, _ in kernel.body if op is not None]
        kernel.local_accesses = sum(op.startswith(("STL", "LDL")) for op in opcodes)
        if "ACQBULK" in opcodes:
            ahead = opcodes[:opcodes.index("ACQBULK")]
            kernel.ahead_bytes = sum(bytes_of(op) for op in ahead if op.startswith("LDG.E.NA"))
    return kernels
