/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: any text is settings in PyTorch's ranges, or is refused in words with the
 * place in it. Settings written as text are read back as they were; a buffer that is
 * too short gets the text's beginning.
 */
#include <string.h>

#include "nt_fuzz.h"
#include "trace/nt_settings.h"

/* All keys at once with the longest numbers fit. */
#define MOST_TEXT 2048

static void
check_ranges(const nt_settings *s)
{
    const double threshold = s->garbage_collection_threshold;
    const double fraction = s->per_process_memory_fraction;
    NT_FUZZ_CHECK(threshold >= 0 && threshold < 1);
    NT_FUZZ_CHECK(fraction >= 0 && fraction <= 1);
    NT_FUZZ_CHECK(s->large_segment_size > (uint64_t)10 << 20);
    NT_FUZZ_CHECK(s->max_split_size >= s->large_segment_size);
    NT_FUZZ_CHECK(s->max_non_split_rounding >= s->large_segment_size);
    for (size_t i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
        const uint32_t divisions = s->roundup_power2_divisions[i];
        NT_FUZZ_CHECK((divisions & (divisions - 1)) == 0);
    }
}

/* Shares are written with 18 digits at most. */
static bool
is_near(double a, double b)
{
    return a - b < 1e-15 && b - a < 1e-15;
}

static void
check_same(const nt_settings *a, const nt_settings *b)
{
    NT_FUZZ_CHECK(a->max_split_size == b->max_split_size);
    NT_FUZZ_CHECK(a->max_non_split_rounding == b->max_non_split_rounding);
    NT_FUZZ_CHECK(a->large_segment_size == b->large_segment_size);
    NT_FUZZ_CHECK(a->expandable_segments == b->expandable_segments);
    NT_FUZZ_CHECK(a->native_backend == b->native_backend);
    NT_FUZZ_CHECK(
        is_near(a->garbage_collection_threshold, b->garbage_collection_threshold));
    NT_FUZZ_CHECK(
        is_near(a->per_process_memory_fraction, b->per_process_memory_fraction));
    for (size_t i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
        /* 0 and 1 are both "off". */
        NT_FUZZ_CHECK((a->roundup_power2_divisions[i] | 1) ==
                      (b->roundup_power2_divisions[i] | 1));
    }
}

static void
check_text(const nt_settings *s)
{
    char first[MOST_TEXT], cut[17];
    nt_settings again;
    const size_t length = nt_settings_format(s, first, sizeof first);
    NT_FUZZ_CHECK(length < sizeof first && strlen(first) == length);
    NT_FUZZ_CHECK(nt_settings_parse(first, length, &again, NULL) == NT_OK);
    check_ranges(&again);
    check_same(s, &again);
    NT_FUZZ_CHECK(nt_settings_format(s, cut, sizeof cut) == length);
    const size_t kept = length < sizeof cut ? length : sizeof cut - 1;
    NT_FUZZ_CHECK(strlen(cut) == kept && memcmp(first, cut, kept) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nt_settings made, before;
    nt_error err = {.offset = NT_NO_OFFSET};
    memset(&made, 0x5a, sizeof made);
    memcpy(&before, &made, sizeof made);
    const nt_status status = nt_settings_parse((const char *)data, size, &made, &err);
    if (status == NT_OK) {
        check_ranges(&made);
        check_text(&made);
        return 0;
    }
    NT_FUZZ_CHECK(status == NT_ARGUMENT && err.status == status);
    NT_FUZZ_CHECK(err.offset <= size);
    NT_FUZZ_CHECK(err.message[0] != '\0');
    NT_FUZZ_CHECK(memchr(err.message, '\0', sizeof err.message) != NULL);
    NT_FUZZ_CHECK(memcmp(&before, &made, sizeof made) == 0);
    return 0;
}
