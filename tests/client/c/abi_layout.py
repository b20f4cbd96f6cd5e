#!/usr/bin/env python3
"""Writes a C program that prints the size of every struct of the given headers and where its fields are.

  abi_layout.py OUTPUT HEADER..
"""
import pathlib
import re
import sys

STRUCT = re.compile(r"typedef struct (\w+) \{(.*?)\} \1;", re.S)
PROGRAM = """#include <stddef.h>
#include <stdio.h>

#include "client/c/eplb_plan.h"

#define STRUCT(type) printf("%s %zu\\n", #type, sizeof(type))
#define FIELD(type, field) printf("  %s %zu %zu\\n", #field, offsetof(type, field), sizeof(((type*)0)->field))

int main(void) {{
  printf("EPLB_ABI_VERSION %d\\n", EPLB_ABI_VERSION);
{lines}
  return 0;
}}
"""


def structs(header):
    """[(struct, [field])] in the order of the header."""
    text = re.sub(r"/\*.*?\*/", "", pathlib.Path(header).read_text(), flags=re.S)
    for name, body in STRUCT.findall(text):
        yield name, [re.search(r"(\w+)(\[\w+\])?$", field.strip()).group(1) for field in body.split(";") if field.strip()]


def main(output, *headers):
    lines = []
    for header in headers:
        for name, fields in structs(header):
            lines.append(f"  STRUCT({name});")
            lines += [f"  FIELD({name}, {field});" for field in fields]
    pathlib.Path(output).write_text(PROGRAM.format(lines="\n".join(lines)))


if __name__ == "__main__":
    main(*sys.argv[1:])
