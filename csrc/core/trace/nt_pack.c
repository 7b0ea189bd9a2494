/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_pack.h"

#include <string.h>

#include "trace/nt_invariants.h"
#include "trace/nt_pack_numbers.h"

static const char pack_magic[8] = {'n', 't', 'p', 'a', 'c', 'k', '1', '\n'};

/* Room for the numbers of a chunk. */
#define PACK_ROOM (NT_PACK_COLUMNS * NT_PACK_ROWS * sizeof(uint64_t))

/* Why only a part was read: a length, and the text. */
static void
pack_put_partial(nt_pack_out *out)
{
    const char *reason = nt_snapshot_partial(out->snapshot);
    nt_pack_put_one(out, reason == NULL ? 0 : strlen(reason) + 1);
    if (reason != NULL) {
        nt_pack_put_bytes(out, reason, strlen(reason) + 1);
    }
}

static nt_status
pack_get_partial(nt_pack_in *in)
{
    uint64_t length;
    NT_TRY(nt_pack_get_one(in, &length));
    if (length > 256) {
        return nt_pack_odd(in);
    }
    NT_TRY(nt_pack_need(in, (size_t)length));
    const char *reason = (const char *)in->source->next;
    if (length != 0) {
        if (memchr(reason, 0, (size_t)length) != reason + length - 1) {
            return nt_pack_odd(in);
        }
        nt_snapshot_set_partial(in->snapshot, reason);
    }
    in->source->next += length;
    return NT_OK;
}

/* The host's memory, where there is any: rows under the ids of the whole. */
static void
pack_put_host(nt_pack_out *out)
{
    const nt_snapshot *host = nt_snapshot_host(out->snapshot);
    nt_pack_put_one(out, host != NULL);
    if (host != NULL) {
        out->snapshot = host;
        nt_pack_put_one(out, nt_snapshot_keys(host));
        nt_pack_put_rows(out);
        nt_pack_put_events(out);
        nt_pack_put_notes(out);
    }
}

nt_status
nt_pack_save(const nt_alloc *alloc, const nt_snapshot *snapshot, const nt_sink *sink,
             nt_error *err)
{
    nt_pack_out out = {
        .snapshot = snapshot,
        .sink = sink,
        .alloc = *alloc,
        .numbers = nt_allocate(alloc, PACK_ROOM),
        .bytes = nt_allocate(alloc, NT_PACK_ROWS),
        .err = err,
    };
    if (out.numbers == NULL || out.bytes == NULL) {
        out.status = nt_fail_nomem(err);
    } else {
        nt_pack_put_bytes(&out, pack_magic, sizeof pack_magic);
        nt_pack_put_one(&out, nt_snapshot_keys(snapshot));
        nt_pack_put_texts(&out);
        nt_pack_put_rows(&out);
        nt_pack_put_events(&out);
        nt_pack_put_notes(&out);
        pack_put_partial(&out);
        pack_put_host(&out);
    }
    nt_release(alloc, out.numbers, out.numbers == NULL ? 0 : PACK_ROOM);
    nt_release(alloc, out.bytes, out.bytes == NULL ? 0 : NT_PACK_ROWS);
    return out.status;
}

/* The keys, rows, events and notes of in->snapshot. */
static nt_status
pack_get_tables(nt_pack_in *in, uint64_t keys)
{
    nt_snapshot_set_keys(in->snapshot, (uint32_t)keys);
    NT_TRY(nt_pack_get_rows(in));
    NT_TRY(nt_pack_get_events(in));
    /* What one that was written keeps; the notes are those it was written with. */
    NT_TRY(nt_invariants_check(&in->alloc, in->snapshot, in->err));
    nt_snapshot_drop_broken(in->snapshot);
    return nt_pack_get_notes(in);
}

static nt_status
pack_get_host(nt_pack_in *in)
{
    uint64_t has_host, keys;
    NT_TRY(nt_pack_get_one(in, &has_host));
    if (has_host > 1) {
        return nt_pack_odd(in);
    }
    if (has_host == 0) {
        return NT_OK;
    }
    nt_snapshot *device = in->snapshot;
    NT_TRY(nt_pack_get_one(in, &keys));
    NT_TRY(nt_snapshot_begin_host(device, &in->snapshot, in->err));
    const nt_status status =
        (keys & NT_HAS_BEFORE) != 0 ? nt_pack_odd(in) : pack_get_tables(in, keys);
    in->snapshot = device;
    return status;
}

static nt_status
pack_get_all(nt_pack_in *in)
{
    uint64_t keys;
    NT_TRY(nt_pack_need(in, sizeof pack_magic));
    if (memcmp(in->source->next, pack_magic, sizeof pack_magic) != 0) {
        return nt_pack_odd(in);
    }
    in->source->next += sizeof pack_magic;
    NT_TRY(nt_pack_get_one(in, &keys));
    NT_TRY(nt_pack_get_texts(in));
    NT_TRY(pack_get_tables(in, keys));
    NT_TRY(pack_get_partial(in));
    NT_TRY(pack_get_host(in));
    return nt_snapshot_seal(in->snapshot, in->err);
}

nt_status
nt_pack_load(const nt_alloc *alloc, nt_source *source, nt_snapshot **out, nt_error *err)
{
    nt_pack_in in = {
        .source = source,
        .alloc = *alloc,
        .numbers = nt_allocate(alloc, PACK_ROOM),
        .err = err,
    };
    nt_status status = in.numbers == NULL ? nt_fail_nomem(err) : NT_OK;
    if (status == NT_OK) {
        status = nt_snapshot_new(alloc, &in.snapshot, err);
    }
    if (status == NT_OK) {
        status = pack_get_all(&in);
    }
    nt_release(alloc, in.numbers, in.numbers == NULL ? 0 : PACK_ROOM);
    if (status != NT_OK) {
        nt_snapshot_free(in.snapshot);
        return status;
    }
    *out = in.snapshot;
    return NT_OK;
}
