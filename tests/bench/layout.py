"""Prints a C program that prints offset and size of every field that bench/weft_structs.py names, as the compiler sees
them; or, with a file of that program's output, compares.    layout.py BENCH_DIR [OUTPUT]
"""
import ctypes
import sys

sys.path.insert(0, sys.argv[1])
import weft_structs as w  # noqa: E402

FIELDS = [(name, struct, field[0]) for name, struct in w.STRUCTS.items() for field in struct._fields_]
CONSTANTS = {"WEFT_BF16": w.WEFT_BF16, "WEFT_F16": w.WEFT_F16, "WEFT_F32": w.WEFT_F32, "WEFT_I64": w.WEFT_I64,
             "WEFT_CE_DX": w.WANTS_DX, "WEFT_CE_DW": w.WANTS_DW, "WEFT_CE_STEP": w.WANTS_STEP,
             "WEFT_DEVICE_CUDA": w.DEVICE_CUDA}


def program():
    print("#include <stddef.h>\n#include <stdio.h>\n#include <weft/weft.h>\nint main(void) {")
    for name, _, field in FIELDS:
        print(f'  printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
    for name in w.STRUCTS:
        print(f'  printf("{name} %zu\\n", sizeof({name}));')
    for name in CONSTANTS:
        print(f'  printf("{name} %d\\n", (int){name});')
    print("  return 0;\n}")


def compare(path):
    expected = [f"{name}.{field} {getattr(struct, field).offset} {getattr(struct, field).size}"
                for name, struct, field in FIELDS]
    expected += [f"{name} {ctypes.sizeof(struct)}" for name, struct in w.STRUCTS.items()]
    expected += [f"{name} {value}" for name, value in CONSTANTS.items()]
    with open(path) as found:
        lines = found.read().splitlines()
    wrong = [f"{a} here, {b} in C" for a, b in zip(expected, lines) if a != b]
    if len(expected) != len(lines):
        wrong.append(f"{len(expected)} lines here, {len(lines)} in C")
    print("\n".join(wrong) or f"{len(lines)} lines agree")
    return 1 if wrong else 0


sys.exit(compare(sys.argv[2]) if len(sys.argv) > 2 else program())
