"""Prints the shared tables of cases as C: `cases.py TESTS_DIRECTORY > cases.h`. Standard library only."""

import base64
import json
import sys
from pathlib import Path


def quote(text: str) -> str:
    """A C string literal of the text's UTF-8 bytes. Octal escapes: unlike \\x they end after three digits."""
    return '"' + "".join(f"\\{byte:03o}" for byte in text.encode("utf-8", "surrogatepass")) + '"'


def main(tests: Path) -> None:
    print("static const struct { const char *text; unsigned long long bytes; } vram_cases[] = {")
    for case in json.loads((tests / "vram_cases.json").read_text("utf-8")):
        if "\0" in case["text"]:
            continue  # an argument cannot hold it
        print(f"\t{{{quote(case['text'])}, {case.get('bytes', 0)}ULL}},")
    print("};")

    cases = json.loads((tests / "vectors" / "session_file.json").read_text("utf-8"))
    print("struct field { const char *name, *value; };")
    print(
        "static const struct { const char *name, *error; const unsigned char *file; unsigned long size; unsigned repeat;"
        " const char *key, *cluster; unsigned long long job_id, uid; struct field fields[20]; } session_cases[] = {"
    )
    for case in cases:
        data = base64.b64decode(case["file"])
        fields = "".join(f"{{{quote(name)}, {quote(value)}}}, " for name, value in case.get("fields", {}).items())
        error = quote(case["error"]) if "error" in case else "NULL"
        content = "".join(f"\\{byte:03o}" for byte in data)
        key = "".join(f"\\{byte:03o}" for byte in bytes.fromhex(case["key"]))
        print(
            f'\t{{{quote(case["name"])}, {error}, (const unsigned char *)"{content}", {len(data)}UL, {case["repeat"]}U, '
            f'"{key}", {quote(case["cluster"])}, {case["job_id"]}ULL, {case["uid"]}ULL, {{{fields}{{NULL, NULL}}}}}},'
        )
    print("};")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
