"""Give an ELF program another loader and another place to look for its libraries, without any tool.

Only what a relocated Slurm needs: 64-bit little-endian files that already carry a DT_RUNPATH (Debian's Slurm programs
do, for libslurmfull.so), whose text is long enough for the new one.
"""

from __future__ import annotations

import struct

PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NULL, DT_STRTAB, DT_RPATH, DT_RUNPATH = 0, 5, 15, 29
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")  # type, flags, offset, vaddr, paddr, filesz, memsz, align
DYNAMIC_ENTRY = struct.Struct("<qQ")


class ElfError(ValueError):
    """The file is not what this module can change."""


def relocate(program: bytes, loader: str, library_path: str) -> bytes:
    """The same program with `loader` (absolute path) as its interpreter and `library_path` as DT_RPATH.

    DT_RPATH and not DT_RUNPATH, because it holds for the libraries' own libraries and for plugins too.
    """
    if program[:6] != b"\x7fELF\x02\x01":
        raise ElfError("not a 64-bit little-endian ELF file")
    data = bytearray(program)
    (table,) = struct.unpack_from("<Q", data, 32)
    entry_size, count = struct.unpack_from("<HH", data, 54)
    headers = [(table + i * entry_size, PROGRAM_HEADER.unpack_from(data, table + i * entry_size)) for i in range(count)]

    def offset_of(address: int) -> int:
        for _, (kind, _, offset, vaddr, _, filesz, _, _) in headers:
            if kind == PT_LOAD and vaddr <= address < vaddr + filesz:
                return int(offset + address - vaddr)
        raise ElfError(f"no segment holds address {address:#x}")

    dynamic = next((fields for _, fields in headers if fields[0] == PT_DYNAMIC), None)
    interpreter = next(((place, fields) for place, fields in headers if fields[0] == PT_INTERP), None)
    if dynamic is None or interpreter is None:
        raise ElfError("not a dynamically linked program")

    strings = path_entry = path_text = None
    position = dynamic[2]
    while True:
        tag, value = DYNAMIC_ENTRY.unpack_from(data, position)
        if tag == DT_NULL:
            break
        if tag == DT_STRTAB:
            strings = offset_of(value)
        elif tag in (DT_RUNPATH, DT_RPATH):
            path_entry, path_text = position, value
        position += DYNAMIC_ENTRY.size
    if strings is None or path_entry is None or path_text is None:
        raise ElfError("no DT_RUNPATH to replace")
    start = strings + path_text
    room = data.index(0, start) - start
    new = library_path.encode()
    if len(new) > room:
        raise ElfError(f"library path {library_path!r} has {len(new)} bytes; room for {room}")
    data[start : start + room] = new.ljust(room, b"\0")
    DYNAMIC_ENTRY.pack_into(data, path_entry, DT_RPATH, path_text)

    # The kernel reads the interpreter's name from the file, wherever it stands: at the end there is room.
    place, (kind, flags, _, vaddr, paddr, _, _, align) = interpreter
    name = loader.encode() + b"\0"
    PROGRAM_HEADER.pack_into(data, place, kind, flags, len(data), vaddr, paddr, len(name), len(name), align)
    return bytes(data + name)
