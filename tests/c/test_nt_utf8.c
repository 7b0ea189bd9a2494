/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_utf8.h"

#include <string.h>

#include "nt_test.h"

static bool
is_utf8(const char *text)
{
    return nt_utf8_check((const uint8_t *)text, strlen(text));
}

NT_TEST(every_code_point_is_well_formed)
{
    for (uint32_t point = 0; point <= 0x10ffff; point += 7) {
        uint8_t bytes[4];
        const size_t length = nt_utf8_put(bytes, point);
        if (!NT_CHECK(nt_utf8_check(bytes, length))) {
            NT_FAIL("code point %u", (unsigned)point);
            return;
        }
        NT_CHECK(length == 1 || !nt_utf8_check(bytes, length - 1));
    }
}

NT_TEST(malformed_bytes_are_told_apart)
{
    NT_CHECK(is_utf8(""));
    NT_CHECK(is_utf8("plain text of more than eight bytes"));
    NT_CHECK(is_utf8("\xed\xa0\x80"));      /* a surrogate, as Python writes it */
    NT_CHECK(!is_utf8("\x80"));             /* no lead */
    NT_CHECK(!is_utf8("\xc0\x80"));         /* overlong */
    NT_CHECK(!is_utf8("\xe0\x80\x80"));     /* overlong */
    NT_CHECK(!is_utf8("\xf0\x80\x80\x80")); /* overlong */
    NT_CHECK(!is_utf8("\xf4\x90\x80\x80")); /* above U+10FFFF */
    NT_CHECK(!is_utf8("\xf8\x88\x80\x80\x80"));
    NT_CHECK(!is_utf8("text of eight bytes and then \xe2\x82"));
}

const nt_test_case nt_utf8_tests[] = {
    NT_CASE(every_code_point_is_well_formed),
    NT_CASE(malformed_bytes_are_told_apart),
    NT_CASES_END,
};
