"""Prints the shared tables of cases as C: `cases.py TESTS_DIRECTORY > cases.h`. Standard library only."""

import base64
import json
import sys
from pathlib import Path

SESSION_CASES = """\
struct field { const char *name, *value; };
static const struct {
\tconst char *name, *error;
\tconst unsigned char *file;
\tunsigned long size;
\tunsigned repeat;
\tconst char *key, *cluster;
\tunsigned long long job_id, uid;
\tstruct field fields[20];
} session_cases[] = {"""


def quote_bytes(data: bytes) -> str:
    """A C string literal. Octal escapes: unlike \\x they end after three digits."""
    return '"' + "".join(f"\\{byte:03o}" for byte in data) + '"'


def quote(text: str) -> str:
    return quote_bytes(text.encode("utf-8", "surrogatepass"))


def main(tests: Path) -> None:
    print("static const struct { const char *text; unsigned long long bytes; } vram_cases[] = {")
    for case in json.loads((tests / "vram_cases.json").read_text("utf-8")):
        if "\0" in case["text"]:
            continue  # an argument cannot hold it
        print(f"\t{{{quote(case['text'])}, {case.get('bytes', 0)}ULL}},")
    print("};")

    cases = json.loads((tests / "vectors" / "session_file.json").read_text("utf-8"))
    print(SESSION_CASES)
    for case in cases:
        fields = "".join(f"{{{quote(name)}, {quote(value)}}}, " for name, value in case.get("fields", {}).items())
        data = base64.b64decode(case["file"])
        values = (
            quote(case["name"]),
            quote(case["error"]) if "error" in case else "NULL",
            f"(const unsigned char *){quote_bytes(data)}",
            f"{len(data)}UL",
            f"{case['repeat']}U",
            quote_bytes(bytes.fromhex(case["key"])),
            quote(case["cluster"]),
            f"{case['job_id']}ULL",
            f"{case['uid']}ULL",
            f"{{{fields}{{NULL, NULL}}}}",
        )
        print(f"\t{{{', '.join(values)}}},")
    print("};")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
