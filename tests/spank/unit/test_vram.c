/* The table of VRAM sizes that Python and C share. */
#include "check.h"
#include "vram.h"

#include "cases.h"

int main(void)
{
	(void)session_cases;
	for (size_t i = 0; i < sizeof vram_cases / sizeof *vram_cases; i++) {
		char reason[VRAM_REASON_SIZE] = "";
		uint64_t bytes = 0;
		bool good = vram_parse(vram_cases[i].text, &bytes, reason);

		CHECK(good == (vram_cases[i].bytes != 0), "'%s' (%s)", vram_cases[i].text, reason);
		CHECK(!good || bytes == vram_cases[i].bytes, "'%s' is %llu, not %llu", vram_cases[i].text,
		      (unsigned long long)bytes, vram_cases[i].bytes);
		CHECK(good || *reason != '\0', "'%s' is refused without a reason", vram_cases[i].text);
	}
	CHECK(checks > 3 * 40, "the table is too short");
	return summary("vram");
}
