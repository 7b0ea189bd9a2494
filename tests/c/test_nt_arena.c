/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_arena.h"

#include <string.h>

#include "nt_test.h"

NT_TEST(empty_arena_holds_no_memory)
{
    nt_hostile hostile;
    nt_arena arena;
    nt_hostile_init(&hostile, t);
    nt_arena_init(&arena, hostile.alloc);
    nt_arena_clear(&arena);
    NT_CHECK_UINT(hostile.requests, 0);
}

NT_TEST(zeroed_arena_works_like_new)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_arena arena = {.alloc = hostile.alloc};
    uint8_t *piece = nt_arena_take(&arena, 100, 8);
    NT_REQUIRE(NT_CHECK(piece != NULL));
    memset(piece, 1, 100);
    nt_arena_clear(&arena);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(piece_of_no_bytes_exists)
{
    nt_hostile hostile;
    nt_arena arena;
    nt_hostile_init(&hostile, t);
    nt_arena_init(&arena, hostile.alloc);
    NT_CHECK(nt_arena_take(&arena, 0, 1) != NULL);
    NT_CHECK(nt_arena_take(&arena, 0, 16) != NULL);
    NT_CHECK(nt_arena_copy(&arena, NULL, 0) != NULL);
    nt_arena_clear(&arena);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(copy_holds_the_same_bytes)
{
    nt_hostile hostile;
    nt_arena arena;
    nt_hostile_init(&hostile, t);
    nt_arena_init(&arena, hostile.alloc);
    char text[] = "no terminator needed";
    const uint8_t *copy = nt_arena_copy(&arena, text, 13);
    NT_REQUIRE(NT_CHECK(copy != NULL));
    memset(text, 0, sizeof text);
    NT_CHECK_BYTES(copy, "no terminator", 13);
    nt_arena_clear(&arena);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(small_content_takes_small_chunk)
{
    nt_hostile hostile;
    nt_arena arena;
    nt_hostile_init(&hostile, t);
    nt_arena_init(&arena, hostile.alloc);
    NT_CHECK(nt_arena_take(&arena, 1, 1) != NULL);
    NT_CHECK(hostile.live_bytes <= 4096);
    nt_arena_clear(&arena);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(many_pieces_take_few_chunks)
{
    nt_hostile hostile;
    nt_arena arena;
    const size_t count = 1 << 20, size = 16;
    nt_hostile_init(&hostile, t);
    nt_arena_init(&arena, hostile.alloc);
    for (size_t i = 0; i < count; i++) {
        NT_REQUIRE(NT_CHECK(nt_arena_take(&arena, size, 16) != NULL));
    }
    NT_CHECK(hostile.requests <= 32);
    NT_CHECK(hostile.peak_bytes <= count * size + (2 << 20));
    nt_arena_clear(&arena);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(aligned_piece_ends_in_its_chunk)
{
    for (size_t less = 0; less < 17; less++) {
        nt_hostile hostile;
        nt_arena arena;
        nt_hostile_init(&hostile, t);
        nt_arena_init(&arena, hostile.alloc);
        NT_REQUIRE(NT_CHECK(nt_arena_take(&arena, 1, 1) != NULL));
        /* 15 bytes are lost to the alignment, so that not all of the room is left. */
        const size_t size = (size_t)(arena.end - arena.next) - less;
        uint8_t *piece = nt_arena_take(&arena, size, 16);
        NT_REQUIRE(NT_CHECK(piece != NULL));
        NT_CHECK(piece + size <= arena.end);
        NT_CHECK_UINT(hostile.live_blocks, less < 15 ? 2 : 1);
        memset(piece, 1, size);
        nt_arena_clear(&arena);
        NT_CHECK_NO_LEAK(&hostile);
    }
}

NT_TEST(piece_larger_than_chunks_fits)
{
    nt_hostile hostile;
    nt_arena arena;
    const size_t size = 5 << 20;
    nt_hostile_init(&hostile, t);
    nt_arena_init(&arena, hostile.alloc);
    uint8_t *small = nt_arena_take(&arena, 8, 8);
    uint8_t *large = nt_arena_take(&arena, size, 16);
    NT_REQUIRE(NT_CHECK(small != NULL && large != NULL));
    memset(small, 1, 8);
    memset(large, 2, size);
    NT_CHECK_UINT(small[7], 1);
    NT_CHECK_UINT((uintptr_t)large % 16, 0);
    nt_arena_clear(&arena);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(piece_larger_than_memory_is_refused)
{
    nt_hostile hostile;
    nt_arena arena;
    nt_hostile_init(&hostile, t);
    nt_arena_init(&arena, hostile.alloc);
    for (size_t less = 0; less < 64; less++) {
        NT_CHECK(nt_arena_take(&arena, SIZE_MAX - less, 1) == NULL);
    }
    uint8_t *piece = nt_arena_take(&arena, 32, 16);
    NT_REQUIRE(NT_CHECK(piece != NULL));
    memset(piece, 3, 32);
    NT_CHECK(nt_arena_take(&arena, SIZE_MAX - 8, 16) == NULL);
    NT_CHECK_UINT(piece[31], 3);
    nt_arena_clear(&arena);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(cleared_arena_starts_small_again)
{
    nt_hostile hostile;
    nt_arena arena;
    nt_hostile_init(&hostile, t);
    nt_arena_init(&arena, hostile.alloc);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 1000; i++) {
            NT_CHECK(nt_arena_take(&arena, 1000, 1) != NULL);
        }
        nt_arena_clear(&arena);
        NT_CHECK_NO_LEAK(&hostile);
        NT_CHECK(nt_arena_take(&arena, 1, 1) != NULL);
        NT_CHECK(hostile.live_bytes <= 4096);
    }
    nt_arena_clear(&arena);
    NT_CHECK_NO_LEAK(&hostile);
}

/* What was taken before a refusal stays whole. */
static nt_status
take_until_refused(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    enum { PIECES = 40 };
    uint8_t *pieces[PIECES];
    size_t taken = 0;
    nt_arena arena;
    (void)ctx;
    nt_arena_init(&arena, *alloc);
    for (; taken < PIECES; taken++) {
        pieces[taken] = nt_arena_take(&arena, 1500, 8);
        if (pieces[taken] == NULL) {
            break;
        }
        memset(pieces[taken], (int)taken, 1500);
    }
    for (size_t i = 0; i < taken; i++) {
        NT_CHECK_UINT(pieces[i][0], i);
        NT_CHECK_UINT(pieces[i][1499], i);
    }
    nt_arena_clear(&arena);
    return taken == PIECES ? NT_OK : NT_NOMEM;
}

NT_TEST(arena_survives_every_refusal)
{
    nt_test_sweep(t, take_until_refused, NULL);
}

NT_TEST(refused_piece_can_be_taken_later)
{
    nt_hostile hostile;
    nt_arena arena;
    nt_hostile_init(&hostile, t);
    nt_arena_init(&arena, hostile.alloc);
    hostile.fail_at = 1;
    NT_CHECK(nt_arena_take(&arena, 10, 1) == NULL);
    NT_CHECK(nt_arena_copy(&arena, "0123456789", 10) != NULL);
    nt_arena_clear(&arena);
    NT_CHECK_NO_LEAK(&hostile);
}

typedef struct arena_piece {
    uint8_t *bytes;
    size_t size;
    uint8_t value;
} arena_piece;

NT_TEST(random_pieces_never_touch_another)
{
    for (uint64_t run = 1; run <= 20; run++) {
        enum { PIECES = 400 };
        uint64_t seed = run;
        const size_t failures = t->failures;
        arena_piece pieces[PIECES];
        nt_hostile hostile;
        nt_arena arena;
        nt_hostile_init(&hostile, t);
        nt_arena_init(&arena, hostile.alloc);
        for (size_t i = 0; i < PIECES; i++) {
            const uint64_t r = nt_test_random(&seed);
            const size_t align = (size_t)1 << r % 5;
            const size_t size = r >> 8 & 15 ? r >> 16 & 255 : r >> 16 & 16383;
            pieces[i] = (arena_piece){nt_arena_take(&arena, size, align), size,
                                      (uint8_t)nt_test_random(&seed)};
            NT_REQUIRE(NT_CHECK(pieces[i].bytes != NULL));
            NT_CHECK_UINT((uintptr_t)pieces[i].bytes % align, 0);
            memset(pieces[i].bytes, pieces[i].value, size);
        }
        for (size_t i = 0; i < PIECES; i++) {
            for (size_t k = 0; k < pieces[i].size; k++) {
                NT_REQUIRE(NT_CHECK_UINT(pieces[i].bytes[k], pieces[i].value));
            }
        }
        nt_arena_clear(&arena);
        NT_CHECK_NO_LEAK(&hostile);
        if (t->failures != failures) {
            NT_FAIL("so it was with seed %llu", (unsigned long long)run);
            return;
        }
    }
}

const nt_test_case nt_arena_tests[] = {
    NT_CASE(empty_arena_holds_no_memory),
    NT_CASE(zeroed_arena_works_like_new),
    NT_CASE(piece_of_no_bytes_exists),
    NT_CASE(copy_holds_the_same_bytes),
    NT_CASE(small_content_takes_small_chunk),
    NT_CASE(many_pieces_take_few_chunks),
    NT_CASE(aligned_piece_ends_in_its_chunk),
    NT_CASE(piece_larger_than_chunks_fits),
    NT_CASE(piece_larger_than_memory_is_refused),
    NT_CASE(cleared_arena_starts_small_again),
    NT_CASE(arena_survives_every_refusal),
    NT_CASE(refused_piece_can_be_taken_later),
    NT_CASE(random_pieces_never_touch_another),
    NT_CASES_END,
};
