/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_planes.h"

#include "nt_test.h"

enum { PLANES_MOST = 64 };

/* Reads what was written, as a page does. */
static void
planes_read(const uint8_t *planes, size_t count, const nt_planes_form *form,
            int64_t *out)
{
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        for (size_t plane = 0; plane < form->width; plane++) {
            bits |= (uint64_t)planes[plane * count + i] << (8 * plane);
        }
        const uint64_t top = UINT64_C(1) << (8 * form->width - 1);
        if (form->is_signed && form->width < 8 && bits & top) {
            bits -= 2 * top;
        }
        sum = form->delta ? sum + (int64_t)bits : (int64_t)bits;
        out[i] = sum * form->scale;
    }
}

static void
planes_check(nt_test *t, const int64_t *values, size_t count, bool delta, bool grained,
             uint8_t width, bool is_signed)
{
    nt_error err = {0};
    nt_planes_form form;
    NT_REQUIRE(NT_CHECK_OK(
        nt_planes_measure(values, count, delta, grained, &form, &err), &err));
    NT_CHECK_UINT(form.width, width);
    NT_CHECK_INT(form.is_signed, is_signed);
    uint8_t planes[8 * PLANES_MOST];
    int64_t back[PLANES_MOST];
    nt_planes_write(values, count, &form, planes);
    planes_read(planes, count, &form, back);
    for (size_t i = 0; i < count; i++) {
        NT_CHECK_INT(back[i], values[i]);
    }
}

NT_TEST(numbers_take_as_few_bytes_as_hold)
{
    planes_check(t, (const int64_t[]){0, 255, 7}, 3, false, false, 1, false);
    planes_check(t, (const int64_t[]){-1, 127}, 2, false, false, 1, true);
    planes_check(t, (const int64_t[]){-1, 128}, 2, false, false, 2, true);
    planes_check(t, (const int64_t[]){65535, 3}, 2, false, false, 2, false);
    planes_check(t, (const int64_t[]){65536, 3}, 2, false, false, 4, false);
    planes_check(t, (const int64_t[]){-32769, 3}, 2, false, false, 4, true);
    planes_check(t, (const int64_t[]){4294967295, 3}, 2, false, false, 4, false);
    planes_check(t, (const int64_t[]){4294967296, 3}, 2, false, false, 8, true);
    planes_check(t, (const int64_t[]){-4503599627370496, 9}, 2, false, false, 8, true);
    planes_check(t, NULL, 0, true, true, 1, false);
}

NT_TEST(differences_and_grains_are_undone)
{
    planes_check(t, (const int64_t[]){200, 400, 600}, 3, true, false, 1, false);
    planes_check(t, (const int64_t[]){9, 4, 600}, 3, true, false, 2, true);
    planes_check(t, (const int64_t[]){512, 102400}, 2, false, true, 1, false);
    planes_check(t, (const int64_t[]){-512, 0, 1024}, 3, true, true, 1, true);
    /* One that is no multiple of the grain, and all stay as they are. */
    planes_check(t, (const int64_t[]){512, 1025}, 2, false, true, 2, false);
}

NT_TEST(numbers_that_doubles_round_are_refused)
{
    const int64_t most = (int64_t)1 << 53;
    nt_error err = {0};
    nt_planes_form form;
    const int64_t large[] = {most};
    NT_CHECK_STATUS(nt_planes_measure(large, 1, false, false, &form, &err), NT_LIMIT,
                    &err);
    const int64_t apart[] = {-(most / 2), most / 2};
    NT_CHECK_STATUS(nt_planes_measure(apart, 2, true, false, &form, &err), NT_LIMIT,
                    &err);
    NT_CHECK_OK(nt_planes_measure(apart, 2, false, false, &form, &err), &err);
    NT_CHECK(form.needs_float);
}

const nt_test_case nt_planes_tests[] = {
    NT_CASE(numbers_take_as_few_bytes_as_hold),
    NT_CASE(differences_and_grains_are_undone),
    NT_CASE(numbers_that_doubles_round_are_refused),
    NT_CASES_END,
};
