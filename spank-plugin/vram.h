/*
 * VRAM quantities as users write them: "2.5", "2560MiB", "2684.35456 MB".
 *
 * A bare number is GiB, as in Juice's own command. Suffixes in any case, after at most one space: B, KB, MB, GB, TB
 * (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024). What can be read in two ways (4G, 16Gi) is refused.
 * tests/vram_cases.json holds this parser, the hooks' and the simulator's to the same rules.
 */
#ifndef JUICE_VRAM_H
#define JUICE_VRAM_H

#include <stdbool.h>
#include <stdint.h>

#define VRAM_ACCEPTED                                                                                                  \
	"a number with an optional suffix B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, e.g. 2.5, 2560MiB; bare: GiB"
#define VRAM_MAX_LENGTH 64

#define VRAM_REASON_SIZE 96

/*
 * Reads `text` into `bytes` (1 to 2^63-1; parts of a byte are dropped, but never down to 0). When it is no size,
 * returns false and writes what is wrong as the end of a sentence that starts with the value ("is not a size").
 */
bool vram_parse(const char *text, uint64_t *bytes, char reason[VRAM_REASON_SIZE]);

#endif
