/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_settings.h"

#include <stdlib.h>
#include <string.h>

#include "nt_test.h"

#define MIB UINT64_C(1048576)

/* The settings of `text`; the defaults, and a failure of the case, if it is refused. */
static nt_settings
settings_of(nt_test *t, const char *text)
{
    nt_settings settings = nt_settings_default();
    nt_error err = {0};
    if (!NT_CHECK_OK(nt_settings_parse(text, strlen(text), &settings, &err), &err)) {
        NT_FAIL("the text is %s", text);
    }
    return settings;
}

/* Equal in effect: divisions of 0 and of 1 are both "off". */
static void
settings_check_same(nt_test *t, const nt_settings *a, const nt_settings *b)
{
    NT_CHECK_UINT(a->max_split_size, b->max_split_size);
    NT_CHECK_UINT(a->max_non_split_rounding, b->max_non_split_rounding);
    NT_CHECK_UINT(a->large_segment_size, b->large_segment_size);
    NT_CHECK(a->garbage_collection_threshold == b->garbage_collection_threshold);
    NT_CHECK(a->per_process_memory_fraction == b->per_process_memory_fraction);
    NT_CHECK(a->expandable_segments == b->expandable_segments);
    NT_CHECK(a->native_backend == b->native_backend);
    for (size_t i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
        const uint32_t left = a->roundup_power2_divisions[i];
        const uint32_t right = b->roundup_power2_divisions[i];
        NT_CHECK_UINT(left == 0 ? 1 : left, right == 0 ? 1 : right);
    }
}

NT_TEST(empty_text_gives_the_defaults)
{
    const nt_settings usual = settings_of(t, "");
    NT_CHECK_UINT(usual.max_split_size, NT_UNLIMITED);
    NT_CHECK_UINT(usual.max_non_split_rounding, 20 * MIB);
    NT_CHECK_UINT(usual.large_segment_size, 20 * MIB);
    NT_CHECK(usual.garbage_collection_threshold == 0);
    NT_CHECK(usual.per_process_memory_fraction == 1);
    NT_CHECK(!usual.expandable_segments && usual.native_backend);
    for (size_t i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
        NT_CHECK_UINT(usual.roundup_power2_divisions[i], 0);
    }
    nt_settings out;
    NT_CHECK_OK(nt_settings_parse(NULL, 0, &out, NULL), NULL);
    settings_check_same(t, &out, &usual);
}

NT_TEST(every_key_sets_its_field)
{
    const nt_settings settings = settings_of(
        t,
        "max_split_size_mb:128,max_non_split_rounding_mb:64,large_segment_size_mb:32,"
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.25,"
        "expandable_segments:True,roundup_power2_divisions:4,backend:cudaMallocAsync");
    NT_CHECK_UINT(settings.max_split_size, 128 * MIB);
    NT_CHECK_UINT(settings.max_non_split_rounding, 64 * MIB);
    NT_CHECK_UINT(settings.large_segment_size, 32 * MIB);
    NT_CHECK(settings.garbage_collection_threshold == 0.8);
    NT_CHECK(settings.per_process_memory_fraction == 0.25);
    NT_CHECK(settings.expandable_segments);
    NT_CHECK(!settings.native_backend);
    for (size_t i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
        NT_CHECK_UINT(settings.roundup_power2_divisions[i], 4);
    }
}

/* A list of divisions, and what c10's own parser of torch 2.13 makes of it. */
static const struct settings_list {
    const char *text;
    uint32_t entries[NT_ROUNDUP_INTERVALS];
} settings_lists[] = {
    {"[256:1,512:2,1024:4,>:8]", {1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8}},
    {"[256:1,1024:4]", {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 4}},
    {"[1:4]", {4}},
    {"[8:4]", {4, 4, 4, 4}},
    {"[>:4]", {0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}},
    {"[>:4,8:2]", {2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}},
    {"[8:2,>:4,16:8]", {2, 2, 2, 2, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}},
    {"[8:0,16:2,>:0]", {0, 0, 0, 0, 2}},
    {"[65536:4]", {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}},
    {"[16384:4,>:8]", {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 8}},
    {"[1024:4,64:2]", {4, 4, 4, 4, 4, 4, 2, 4, 4, 4, 4}},
    {"[1024:4,64:2,>:16]", {4, 4, 4, 4, 4, 4, 2, 16, 16, 16, 16, 16, 16, 16, 16, 16}},
    {"[64:8,]", {8, 8, 8, 8, 8, 8, 8}},
    {"[]", {0}},
};

NT_TEST(lists_fill_what_pytorch_fills)
{
    for (size_t i = 0; i < sizeof settings_lists / sizeof *settings_lists; i++) {
        const size_t failures = t->failures;
        char text[128] = "roundup_power2_divisions:";
        strcat(text, settings_lists[i].text);
        const nt_settings settings = settings_of(t, text);
        for (size_t k = 0; k < NT_ROUNDUP_INTERVALS; k++) {
            NT_CHECK_UINT(settings.roundup_power2_divisions[k],
                          settings_lists[i].entries[k]);
        }
        if (t->failures != failures) {
            NT_FAIL("the list is %s", settings_lists[i].text);
        }
    }
}

/* Texts at the border of what is allowed, and the field that they set. */
NT_TEST(values_at_the_border_pass)
{
    NT_CHECK_UINT(settings_of(t, "max_split_size_mb:20").max_split_size, 20 * MIB);
    NT_CHECK_UINT(settings_of(t, "max_non_split_rounding_mb:20").max_non_split_rounding,
                  20 * MIB);
    NT_CHECK_UINT(settings_of(t, "large_segment_size_mb:11").large_segment_size,
                  11 * MIB);
    NT_CHECK(settings_of(t, "garbage_collection_threshold:0.999999999999")
                 .garbage_collection_threshold < 1);
    NT_CHECK(
        settings_of(t, "per_process_memory_fraction:0").per_process_memory_fraction ==
        0);
    NT_CHECK(
        settings_of(t, "per_process_memory_fraction:1.0").per_process_memory_fraction ==
        1);
    /* What bytes can't hold is cut, as PyTorch cuts it. */
    NT_CHECK_UINT(
        settings_of(t, "max_split_size_mb:18446744073709551615").max_split_size,
        UINT64_MAX / MIB * MIB);
    NT_CHECK_UINT(settings_of(t, "roundup_power2_divisions:2147483648")
                      .roundup_power2_divisions[0],
                  UINT64_C(1) << 31);
}

NT_TEST(large_segments_raise_other_bounds)
{
    /* The order of the keys makes no difference. */
    static const char *const texts[] = {
        "large_segment_size_mb:40,max_split_size_mb:40",
        "max_split_size_mb:40,large_segment_size_mb:40",
    };
    for (size_t i = 0; i < 2; i++) {
        const nt_settings settings = settings_of(t, texts[i]);
        NT_CHECK_UINT(settings.max_split_size, 40 * MIB);
        NT_CHECK_UINT(settings.max_non_split_rounding, 40 * MIB);
    }
    const nt_settings small =
        settings_of(t, "max_split_size_mb:15,large_segment_size_mb:12");
    NT_CHECK_UINT(small.max_split_size, 15 * MIB);
    NT_CHECK_UINT(small.max_non_split_rounding, 12 * MIB);
}

NT_TEST(later_value_of_key_counts)
{
    const nt_settings settings =
        settings_of(t, "expandable_segments:True,max_split_size_mb:30,"
                       "expandable_segments:False,max_split_size_mb:40");
    NT_CHECK(!settings.expandable_segments);
    NT_CHECK_UINT(settings.max_split_size, 40 * MIB);
}

NT_TEST(white_space_means_nothing)
{
    const nt_settings plain =
        settings_of(t, "expandable_segments:True,max_split_size_mb:300,"
                       "garbage_collection_threshold:2e-1,"
                       "roundup_power2_divisions:[64:8,>:2]");
    const nt_settings spaced =
        settings_of(t, " \n expandable_ segments : Tr ue ,\tmax_split_size_mb : 3 00 , "
                       "garbage_collection_threshold:\r\n2 e -1 ,\v"
                       "roundup_power2_divisions: [ 64 : 8 , > : 2 ] , \n ");
    settings_check_same(t, &plain, &spaced);
}

NT_TEST(fractions_are_read_in_full)
{
    static const struct {
        const char *text;
        double value;
    } cases[] = {
        {"0.6", 0.6},
        {".5", 0.5},
        {"00.85", 0.85},
        {"5e-1", 0.5},
        {"5E-1", 0.5},
        {"0.05e1", 0.5},
        {"0.00001e+4", 0.1},
        {"1e-30", 1e-30},
        {"123456789e-9", 0.123456789},
        {"0.1234567890123", 0.1234567890123},
        {"5000000000e-10", 0.5},
        {"5000000000000000000000e-22", 0.5},
        {"0.2500000000000000000000000000", 0.25},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128] = "garbage_collection_threshold:";
        strcat(text, cases[i].text);
        const double read = settings_of(t, text).garbage_collection_threshold;
        /* Powers beyond 10^22 are not exact, and nobody writes them. */
        const double distance = read / cases[i].value - 1;
        NT_CHECK(distance < 1e-15 && distance > -1e-15);
        if (cases[i].value > 1e-9 && read != cases[i].value) {
            NT_FAIL("%s is read as %.17g", cases[i].text, read);
        }
    }
}

NT_TEST(keys_of_other_memory_are_checked)
{
    const nt_settings usual = nt_settings_default();
    const nt_settings settings = settings_of(
        t, "release_lock_on_cudamalloc:True,release_lock_on_hipmalloc:False,"
           "pinned_use_cuda_host_register:True,pinned_use_hip_host_register:True,"
           "pinned_use_background_threads:False,pinned_free_catch_all:True,"
           "pinned_num_register_threads:8,pinned_reserve_segment_size_mb:1,"
           "pinned_max_round_threshold_mb:0,pinned_max_cached_size_mb:64,"
           "graph_capture_record_stream_reuse:True,throw_on_cudamalloc_oom:True,"
           "expandable_segments_reserve:40G,"
           "expandable_segments_reserve_by_class:[serving:0.25,sparse:8G],"
           "backend:native");
    settings_check_same(t, &settings, &usual);
}

/* Texts that are refused: the byte that is blamed, and a part of what is said. */
static const struct settings_refusal {
    const char *text;
    size_t offset;
    const char *says;
} settings_refusals[] = {
    {"max_split_size_mb:19", 18, "at least 20"},
    {"max_split_size_mb: 19", 19, "at least 20"},
    {"max_split_size_mb:19,max_split_size_mb:40", 18, "at least 20"},
    {"max_split_size_mb:30,large_segment_size_mb:40", 18, "at least 40"},
    {"large_segment_size_mb:40,max_non_split_rounding_mb:39", 51, "at least 40"},
    {"max_non_split_rounding_mb:0", 26, "at least 20"},
    {"large_segment_size_mb:10", 22, "above 10"},
    {"max_split_size_mb:30x", 18, "whole number"},
    {"max_split_size_mb:-1", 18, "whole number"},
    {"max_split_size_mb:18446744073709551616", 18, "whole number"},
    {"max_split_size_mb:", 18, "whole number"},
    {"max_split_size_mb", 17, "':'"},
    {"max_split_size_mb=30", 0, "unknown key"},
    {"max_split_size:30", 0, "max_split_size_mb"},
    {"expandable_segments:True,,backend:native", 25, "unknown key"},
    {",backend:native", 0, "unknown key"},
    {"expandable_segments:true", 20, "True or False"},
    {"expandable_segments:1", 20, "True or False"},
    {"expandable_segments:True:False", 24, "','"},
    {"expandable_segments:True]", 24, "','"},
    {"garbage_collection_threshold:0", 29, "below 1"},
    {"garbage_collection_threshold:1", 29, "below 1"},
    {"garbage_collection_threshold:1e5", 29, "below 1"},
    {"garbage_collection_threshold:-0.5", 29, "below 1"},
    {"garbage_collection_threshold:nan", 29, "below 1"},
    {"garbage_collection_threshold:1e-400", 29, "below 1"},
    {"garbage_collection_threshold:0.5e", 29, "below 1"},
    {"garbage_collection_threshold:0.5.5", 29, "below 1"},
    {"garbage_collection_threshold:.", 29, "below 1"},
    {"garbage_collection_threshold:e-1", 29, "below 1"},
    {"per_process_memory_fraction:1.01", 28, "0 to 1"},
    {"roundup_power2_divisions:3", 25, "power of 2"},
    {"roundup_power2_divisions:0", 25, "power of 2"},
    {"roundup_power2_divisions:4294967296", 25, "power of 2"},
    {"roundup_power2_divisions:[3:4]", 26, "power of 2 in MiB"},
    {"roundup_power2_divisions:[0:4]", 26, "power of 2 in MiB"},
    {"roundup_power2_divisions:[64:3]", 29, "power of 2"},
    {"roundup_power2_divisions:[64]", 28, "':'"},
    {"roundup_power2_divisions:[64:8", 30, "']'"},
    {"roundup_power2_divisions:[64:8,", 31, "power of 2 in MiB"},
    {"roundup_power2_divisions:[64:8 128:4]", 29, "power of 2"},
    {"roundup_power2_divisions:[64:8[", 30, "']'"},
    {"backend:cudaMalloc", 8, "native or cudaMallocAsync"},
    {"pinned_num_register_threads:3", 28, "power of 2"},
    {"pinned_num_register_threads:256", 28, "at most 128"},
    {"pinned_reserve_segment_size_mb:0", 31, "above 0"},
    {"pinned_use_background_threads:yes", 30, "True or False"},
    {"expandable_segments_reserve:", 28, "value"},
    {"expandable_segments_reserve_by_class:0.5", 37, "brackets"},
};

NT_TEST(refusals_say_what_and_where)
{
    for (size_t i = 0; i < sizeof settings_refusals / sizeof *settings_refusals; i++) {
        const struct settings_refusal *refusal = &settings_refusals[i];
        const size_t failures = t->failures;
        nt_settings out, before;
        nt_error err = {0};
        memset(&out, 0x5a, sizeof out);
        memset(&before, 0x5a, sizeof before);
        NT_CHECK_STATUS(
            nt_settings_parse(refusal->text, strlen(refusal->text), &out, &err),
            NT_ARGUMENT, &err);
        NT_CHECK_BYTES(&out, &before, sizeof out);
        NT_CHECK_INT(err.status, NT_ARGUMENT);
        NT_CHECK_UINT(err.offset, refusal->offset);
        NT_CHECK(strstr(err.message, refusal->says) != NULL);
        if (t->failures != failures) {
            NT_FAIL("%s gives: %s", refusal->text, err.message);
        }
    }
}

NT_TEST(unknown_key_is_told_all_legal_ones)
{
    nt_error err = {0};
    nt_settings out;
    NT_CHECK_STATUS(nt_settings_parse("max_split:1", 11, &out, &err), NT_ARGUMENT,
                    &err);
    NT_CHECK(strlen(err.message) < sizeof err.message - 1);
    NT_CHECK(strstr(err.message, "max_split_size_mb, ") != NULL);
    NT_CHECK(strstr(err.message, ", backend") != NULL);
}

NT_TEST(text_needs_no_terminator)
{
    static const char text[] = "max_split_size_mb:200";
    nt_settings out;
    for (size_t length = 0; length < sizeof text; length++) {
        /* It ends where its block ends, so that what reads further is caught. */
        char *block = malloc(length + 1);
        NT_REQUIRE(NT_CHECK(block != NULL));
        memcpy(block + 1, text, length);
        const nt_status status = nt_settings_parse(block + 1, length, &out, NULL);
        NT_CHECK((status == NT_OK) == (length == 0 || length >= 20));
        free(block);
    }
    NT_CHECK_STATUS(nt_settings_parse("backend\0:native", 15, &out, NULL), NT_ARGUMENT,
                    NULL);
    NT_CHECK_STATUS(nt_settings_parse("backend:native\0", 15, &out, NULL), NT_ARGUMENT,
                    NULL);
}

static void
settings_check_text(nt_test *t, const char *text, const char *expected)
{
    char buffer[512];
    const nt_settings settings = settings_of(t, text);
    NT_CHECK_UINT(nt_settings_format(&settings, buffer, sizeof buffer),
                  strlen(expected));
    NT_CHECK_STR(buffer, expected);
}

NT_TEST(format_writes_the_shortest_text)
{
    static const char *const same[] = {
        "",
        "backend:cudaMallocAsync",
        "expandable_segments:True",
        "max_split_size_mb:20",
        "max_non_split_rounding_mb:64",
        "large_segment_size_mb:32",
        "garbage_collection_threshold:0.8",
        "garbage_collection_threshold:0.000123",
        "per_process_memory_fraction:0.0",
        "roundup_power2_divisions:8",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "roundup_power2_divisions:[8:4]",
        "roundup_power2_divisions:[8:4,64:2]",
        "roundup_power2_divisions:[8:4,64:2,128:1,>:16]",
        "roundup_power2_divisions:[1:1,>:4]",
        "roundup_power2_divisions:[16384:4,>:8]",
        "expandable_segments:True,max_split_size_mb:64,roundup_power2_divisions:2",
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        settings_check_text(t, same[i], same[i]);
    }
    settings_check_text(t, "expandable_segments:False,backend:native", "");
    settings_check_text(t, "roundup_power2_divisions:1", "");
    settings_check_text(t, "roundup_power2_divisions:[8:0,16:1,>:0]", "");
    settings_check_text(t, "roundup_power2_divisions:[1:4,2:4,4:4,>:4]",
                        "roundup_power2_divisions:4");
    settings_check_text(t, "max_non_split_rounding_mb:20", "");
    settings_check_text(t, "max_non_split_rounding_mb:32,large_segment_size_mb:32",
                        "large_segment_size_mb:32");
}

NT_TEST(format_cuts_and_tells_length)
{
    const nt_settings settings = settings_of(t, "expandable_segments:True");
    char buffer[32];
    for (size_t size = 0; size <= sizeof buffer; size++) {
        memset(buffer, '#', sizeof buffer);
        NT_CHECK_UINT(nt_settings_format(&settings, buffer, size), 24);
        const size_t kept = size == 0 ? 0 : size - 1 < 24 ? size - 1 : 24;
        NT_CHECK_BYTES(buffer, "expandable_segments:True", kept);
        if (size != 0) {
            NT_CHECK_UINT((uint8_t)buffer[kept], 0);
        }
        if (size < sizeof buffer) {
            NT_CHECK_UINT((uint8_t)buffer[size], '#');
        }
    }
    NT_CHECK_UINT(nt_settings_format(&settings, NULL, 0), 24);
}

/* Random settings as a text can give them: shares of up to nine digits. */
static nt_settings
settings_random(uint64_t *seed)
{
    nt_settings settings = nt_settings_default();
    const uint64_t r = nt_test_random(seed);
    if (r & 1) {
        settings.large_segment_size = (11 + (r >> 8) % 50) * MIB;
        settings.max_non_split_rounding = settings.large_segment_size;
    }
    if (r & 2) {
        settings.max_split_size = settings.large_segment_size + (r >> 16) % 500 * MIB;
    }
    if (r & 4) {
        settings.max_non_split_rounding += (r >> 24) % 99 * MIB;
    }
    if (r & 8) {
        settings.garbage_collection_threshold =
            (double)(1 + (r >> 32) % 999999999) / 1000000000;
    }
    if (r & 16) {
        settings.per_process_memory_fraction = (double)((r >> 32) % 1001) / 1000;
    }
    settings.expandable_segments = (r & 32) != 0;
    settings.native_backend = (r & 64) != 0;
    for (size_t i = 0; (r & 128) != 0 && i < NT_ROUNDUP_INTERVALS; i++) {
        const bool repeat = i != 0 && nt_test_random(seed) % 2 == 0;
        settings.roundup_power2_divisions[i] =
            repeat ? settings.roundup_power2_divisions[i - 1]
                   : UINT32_C(1) << nt_test_random(seed) % 5;
    }
    return settings;
}

NT_TEST(what_is_written_reads_the_same)
{
    for (uint64_t run = 1; run <= 2000; run++) {
        uint64_t seed = run;
        const size_t failures = t->failures;
        const nt_settings settings = settings_random(&seed);
        char text[512];
        NT_CHECK(nt_settings_format(&settings, text, sizeof text) < sizeof text);
        const nt_settings again = settings_of(t, text);
        settings_check_same(t, &again, &settings);
        if (t->failures != failures) {
            NT_FAIL("so it was with seed %llu: %s", (unsigned long long)run, text);
            return;
        }
    }
}

/* A text with one or two bytes changed is either read or refused at one of its bytes,
 * and what was read is within the bounds. */
NT_TEST(damaged_texts_are_read_or_refused)
{
    static const char bytes[] = ":,[]>. \n0189eE-+xTF\0\xff";
    for (uint64_t run = 1; run <= 5000; run++) {
        uint64_t seed = run;
        const size_t failures = t->failures;
        const nt_settings settings = settings_random(&seed);
        char text[512];
        const size_t length = nt_settings_format(&settings, text, sizeof text);
        for (int i = 0; i < 2 && length != 0; i++) {
            const uint64_t r = nt_test_random(&seed);
            text[(r >> 8) % length] = bytes[r % sizeof bytes];
        }
        nt_settings out = nt_settings_default();
        nt_error err = {0};
        const nt_status status = nt_settings_parse(text, length, &out, &err);
        NT_CHECK(status == NT_OK || (status == NT_ARGUMENT && err.offset <= length));
        NT_CHECK(out.large_segment_size > 10 * MIB);
        NT_CHECK(out.max_split_size >= out.large_segment_size);
        NT_CHECK(out.max_non_split_rounding >= out.large_segment_size);
        NT_CHECK(out.garbage_collection_threshold >= 0 &&
                 out.garbage_collection_threshold < 1);
        NT_CHECK(out.per_process_memory_fraction >= 0 &&
                 out.per_process_memory_fraction <= 1);
        if (t->failures != failures) {
            NT_FAIL("so it was with seed %llu: %s", (unsigned long long)run, text);
            return;
        }
    }
}

const nt_test_case nt_settings_tests[] = {
    NT_CASE(empty_text_gives_the_defaults),
    NT_CASE(every_key_sets_its_field),
    NT_CASE(lists_fill_what_pytorch_fills),
    NT_CASE(values_at_the_border_pass),
    NT_CASE(large_segments_raise_other_bounds),
    NT_CASE(later_value_of_key_counts),
    NT_CASE(white_space_means_nothing),
    NT_CASE(fractions_are_read_in_full),
    NT_CASE(keys_of_other_memory_are_checked),
    NT_CASE(refusals_say_what_and_where),
    NT_CASE(unknown_key_is_told_all_legal_ones),
    NT_CASE(text_needs_no_terminator),
    NT_CASE(format_writes_the_shortest_text),
    NT_CASE(format_cuts_and_tells_length),
    NT_CASE(what_is_written_reads_the_same),
    NT_CASE(damaged_texts_are_read_or_refused),
    NT_CASES_END,
};
