"""Inline PTX as C++ of the CUDA emulator: loads, stores, fences, programmatic dependent launch and the timer.

An instruction that is not known here ends the build. `ld` and `st` may have any of PTX's qualifiers and vectors of 2 or
4 elements; those that are relaxed, volatile, acquire or release are atomic, and the others plain loads and stores.
"""
import re
import sys

EMULATOR = "::eplb::cuda_emulator::"
ASM = re.compile(r"\basm\s*(?:volatile|__volatile__)?\s*\(")
OPERAND = re.compile(r'"[=+&]*[a-z]"\s*\(')
MEMORY = re.compile(r"\[\s*%(\d+)\s*(?:\+\s*(\d+)\s*)?\]")
TYPE = re.compile(r"([busf])(8|16|32|64)")
ORDERS = {"acquire": "kAcquire", "release": "kRelease", "relaxed": "kRelaxed", "volatile": "kRelaxed"}
WHOLE = [  # instructions without operands, or with a single one
    (r"griddepcontrol\.wait", f"{EMULATOR}WaitForPredecessors()"),
    (r"griddepcontrol\.launch_dependents", "static_cast<void>(0)"),
    (r"(fence|membar)\.[\w.:]+", f"{EMULATOR}Fence()"),
    (r"nanosleep\.u32 \S+", f"{EMULATOR}YieldToAll()"),
]


def end_of(text, at):
    """Returns the index behind the parenthesis that closes the one before `at`."""
    depth = 1
    while depth > 0:
        if text[at] == '"':
            at = text.index('"', at + 1)
            while text[at - 1] == "\\":
                at = text.index('"', at + 1)
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


def sections(text):
    """Splits what is in the parentheses of `asm` at its colons."""
    parts, at = [""], 0
    while at < len(text):
        end = at + 1
        if text[at] == "(":
            end = end_of(text, at + 1)
        elif text[at] == '"':
            end = text.index('"', at + 1) + 1
        if text[at] == ":":
            parts.append("")
        else:
            parts[-1] += text[at:end]
        at = end
    return parts + [""] * (3 - len(parts))


def operands(section):
    found, at = [], 0
    while match := OPERAND.search(section, at):
        at = end_of(section, match.end())
        found.append(section[match.end():at - 1].strip())
    return found


def access(instruction, names, fail):
    opcode, _, rest = instruction.partition(" ")
    words = opcode.split(".")
    memory, kind = MEMORY.search(rest), TYPE.fullmatch(words[-1])
    registers = [names[int(number)] for number in re.findall(r"%(\d+)", MEMORY.sub("", rest))]
    if memory is None or kind is None or len(registers) not in (1, 2, 4):
        fail(instruction)
    c_type = f"uint{kind[2]}_t" if kind[1] in "bu" else f"int{kind[2]}_t" if kind[1] == "s" else {"32": "float", "64": "double"}[kind[2]]
    order = next((EMULATOR + "Order::" + ORDERS[word] for word in words if word in ORDERS), None)
    address = f"({names[int(memory[1])]}), {memory[2] or 0}"
    if order is not None and len(registers) > 1:
        fail(instruction)
    template = f"<{c_type}>" if order is None else f"Word<{c_type}, {order}>"
    return f"{EMULATOR}Ptx{'Load' if words[0] == 'ld' else 'Store'}{template}({address}, {', '.join(registers)})"


def statement(instruction, names, fail):
    for pattern, code in WHOLE:
        if re.fullmatch(pattern, instruction):
            return code
    if timer := re.fullmatch(r"mov\.u64 %(\d+), ?%%(globaltimer|clock64)", instruction):
        return f"{names[int(timer[1])]} = {EMULATOR}GlobalTimer()"
    if re.match(r"(ld|st)\.", instruction):
        return access(instruction, names, fail)
    return fail(instruction)


def translate(text, path):
    """Translates all `asm` of a file; lines stay lines."""
    def fail(instruction):
        sys.exit(f"{path}: the emulator knows no way to write `asm` of {instruction!r} in C++")

    while begin := ASM.search(text):
        end = end_of(text, begin.end())
        template, outputs, inputs = sections(text[begin.end():end - 1])[:3]
        ptx = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', template)).replace("\\n", " ").replace("\\t", " ")
        names = operands(outputs) + operands(inputs)
        code = "; ".join(statement(" ".join(one.split()), names, fail) for one in ptx.split(";") if one.strip())
        text = f"{text[:begin.start()]}{{ {code}; }}" + "\n" * text.count("\n", begin.start(), end) + text[end:]
    return text
