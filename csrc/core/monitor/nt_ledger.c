/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/nt_ledger.h"

#include <string.h>

#include "base/nt_arena.h"
#include "base/nt_map.h"
#include "base/nt_sort.h"

/* A record that waits; `is_done` while a settling is under way. */
typedef struct ledger_pending {
    nt_ledger_record record;
    bool is_done;
} ledger_pending;

/* A live allocation. Those of one address are a list, the oldest first. */
typedef struct ledger_row {
    uint64_t address;
    uint64_t bytes;
    uint32_t use;  /* index; NT_NONE: the row is free, and `next` leads to another */
    uint32_t next; /* the next claim on the address, or NT_NONE */
    uint32_t last; /* in the first row of a list: its last */
    bool is_seed;
} ledger_row;

struct nt_ledger {
    nt_alloc alloc;
    nt_arena texts; /* of the rules */
    nt_ledger_rule *rules;
    size_t rule_count;
    nt_strings *names;   /* libraries; 0 is NT_LEDGER_UNNAMED */
    nt_strings *sources; /* paths of files */
    uint32_t *owners;    /* the library of each source */
    size_t owner_room;
    ledger_pending *pending;
    size_t pending_count, pending_room;
    nt_sort_item *order; /* room for all of `pending` */
    size_t order_room;
    ledger_row *rows;
    size_t row_count, row_room;
    uint32_t free_row; /* the first free row, or NT_NONE */
    nt_map by_address; /* -> the first row of the list */
    nt_ledger_use *uses;
    size_t use_count, use_room;
    nt_map by_use; /* device, kind and library -> index of the use */
    uint64_t unmatched;
};

/* ---- making ---------------------------------------------------------------------- */

static const char *
ledger_copy_text(nt_ledger *l, const char *text)
{
    return (const char *)nt_arena_copy(&l->texts, text, strlen(text) + 1);
}

static nt_status
ledger_take_rules(nt_ledger *l, const nt_ledger_rule *rules, size_t count,
                  nt_error *err)
{
    size_t room = 0;
    NT_TRY(nt_grow(&l->alloc, (void **)&l->rules, &room, count, sizeof *rules, err));
    l->rule_count = room;
    for (size_t i = 0; i < room; i++) {
        l->rules[i] = (nt_ledger_rule){NULL, NULL};
    }
    for (size_t i = 0; i < count; i++) {
        l->rules[i].part = ledger_copy_text(l, rules[i].part);
        l->rules[i].library = ledger_copy_text(l, rules[i].library);
        if (l->rules[i].part == NULL || l->rules[i].library == NULL) {
            return nt_fail_nomem(err);
        }
    }
    return NT_OK;
}

nt_status
nt_ledger_new(const nt_alloc *alloc, const nt_ledger_rule *rules, size_t rule_count,
              nt_ledger **out, nt_error *err)
{
    nt_ledger *l;
    NT_TRY(NT_NEW(alloc, l, 1, err));
    *l = (nt_ledger){.alloc = *alloc, .free_row = NT_NONE};
    nt_arena_init(&l->texts, *alloc);
    nt_map_init(&l->by_address, *alloc);
    nt_map_init(&l->by_use, *alloc);
    uint32_t unnamed;
    nt_status status;
    NT_TRY_DONE(nt_strings_new(alloc, &l->names, err));
    NT_TRY_DONE(nt_strings_new(alloc, &l->sources, err));
    NT_TRY_DONE(nt_strings_intern(l->names, "", 0, &unnamed, err));
    NT_TRY_DONE(ledger_take_rules(l, rules, rule_count, err));
    *out = l;
    l = NULL;
done:
    nt_ledger_free(l);
    return status;
}

void
nt_ledger_free(nt_ledger *ledger)
{
    if (ledger == NULL) {
        return;
    }
    nt_ledger *l = ledger;
    const nt_alloc alloc = l->alloc;
    NT_RELEASE(&alloc, l->rules, l->rule_count);
    NT_RELEASE(&alloc, l->owners, l->owner_room);
    NT_RELEASE(&alloc, l->pending, l->pending_room);
    NT_RELEASE(&alloc, l->order, l->order_room);
    NT_RELEASE(&alloc, l->rows, l->row_room);
    NT_RELEASE(&alloc, l->uses, l->use_room);
    nt_map_clear(&l->by_address);
    nt_map_clear(&l->by_use);
    nt_strings_free(l->names);
    nt_strings_free(l->sources);
    nt_arena_clear(&l->texts);
    nt_release(&alloc, l, sizeof *l);
}

/* ---- libraries ------------------------------------------------------------------- */

/* The name of the file at `path`, without its folder and the numbers behind ".so". */
static const char *
ledger_file_name(const char *path, size_t *length)
{
    const char *slash = strchr(path, '/'), *name = path;
    while (slash != NULL) {
        name = slash + 1;
        slash = strchr(name, '/');
    }
    const char *suffix = strstr(name, ".so.");
    *length = suffix != NULL ? (size_t)(suffix - name) + 3 : strlen(name);
    return name;
}

/* The name of the library that `path` belongs to, and its length. */
static const char *
ledger_name_of(const nt_ledger *l, const char *path, size_t *length)
{
    for (size_t i = 0; i < l->rule_count && l->rules[i].part != NULL; i++) {
        if (strstr(path, l->rules[i].part) != NULL) {
            *length = strlen(l->rules[i].library);
            return l->rules[i].library;
        }
    }
    return ledger_file_name(path, length);
}

nt_status
nt_ledger_find_library(nt_ledger *ledger, const char *path, uint32_t *out,
                       nt_error *err)
{
    if (path == NULL || path[0] == '\0') {
        *out = NT_LEDGER_UNNAMED;
        return NT_OK;
    }
    nt_ledger *l = ledger;
    const size_t path_length = strlen(path);
    const uint32_t known = nt_strings_find(l->sources, path, path_length);
    if (known != NT_NONE) {
        *out = l->owners[known];
        return NT_OK;
    }
    size_t length;
    uint32_t library, source;
    const char *name = ledger_name_of(l, path, &length);
    NT_TRY(nt_strings_intern(l->names, name, length, &library, err));
    NT_TRY(NT_GROW(&l->alloc, l->owners, l->owner_room,
                   nt_strings_count(l->sources) + 1, err));
    NT_TRY(nt_strings_intern(l->sources, path, path_length, &source, err));
    l->owners[source] = library;
    *out = library;
    return NT_OK;
}

const char *
nt_ledger_name(const nt_ledger *ledger, uint32_t library, size_t *length)
{
    return nt_strings_get(ledger->names, library, length);
}

size_t
nt_ledger_source_count(const nt_ledger *ledger)
{
    return nt_strings_count(ledger->sources);
}

const char *
nt_ledger_source(const nt_ledger *ledger, size_t index, size_t *length,
                 uint32_t *library)
{
    *library = ledger->owners[index];
    return nt_strings_get(ledger->sources, (uint32_t)index, length);
}

/* ---- live allocations ------------------------------------------------------------ */

/* The use of these three, made at first sight. */
static nt_status
ledger_find_use(nt_ledger *l, uint32_t device, uint32_t kind, uint32_t library,
                uint32_t *out, nt_error *err)
{
    const uint64_t key =
        (uint64_t)(device & 0xFFFF) << 48 | (uint64_t)(kind & 0xFFFF) << 32 | library;
    const uint32_t known = nt_map_find(&l->by_use, key);
    if (known != NT_NONE) {
        *out = known;
        return NT_OK;
    }
    const uint32_t made = (uint32_t)l->use_count;
    NT_TRY(NT_GROW(&l->alloc, l->uses, l->use_room, l->use_count + 1, err));
    NT_TRY(nt_map_set(&l->by_use, key, made, err));
    l->uses[l->use_count++] =
        (nt_ledger_use){.device = device, .library = library, .kind = kind};
    *out = made;
    return NT_OK;
}

static void
ledger_count_in(nt_ledger *l, uint32_t use, uint64_t bytes)
{
    nt_ledger_use *u = &l->uses[use];
    u->bytes += bytes;
    u->live++;
    if (u->bytes > u->peak_bytes) {
        u->peak_bytes = u->bytes;
    }
}

static void
ledger_count_out(nt_ledger *l, uint32_t use, uint64_t bytes)
{
    l->uses[use].bytes -= bytes;
    l->uses[use].live--;
}

/* A row to fill; the caller puts it to use. */
static nt_status
ledger_find_row(nt_ledger *l, uint32_t *out, nt_error *err)
{
    if (l->free_row != NT_NONE) {
        *out = l->free_row;
        return NT_OK;
    }
    NT_TRY(NT_GROW(&l->alloc, l->rows, l->row_room, l->row_count + 1, err));
    *out = (uint32_t)l->row_count;
    l->rows[l->row_count++] = (ledger_row){.use = NT_NONE, .next = NT_NONE};
    l->free_row = *out;
    return NT_OK;
}

/* Puts a claim behind those on its address; `first` is the first of them, or NT_NONE.
 */
static nt_status
ledger_add(nt_ledger *l, const nt_ledger_live *live, bool is_seed, uint32_t first,
           nt_error *err)
{
    uint32_t use, row;
    NT_TRY(ledger_find_use(l, live->device, live->kind, live->library, &use, err));
    NT_TRY(ledger_find_row(l, &row, err));
    if (first == NT_NONE) {
        NT_TRY(nt_map_set(&l->by_address, live->address, row, err));
    } else {
        l->rows[l->rows[first].last].next = row;
        l->rows[first].last = row;
    }
    l->free_row = l->rows[row].next;
    l->uses[use].allocations += !is_seed;
    l->rows[row] = (ledger_row){live->address, live->bytes, use, NT_NONE, row, is_seed};
    ledger_count_in(l, use, live->bytes);
    return NT_OK;
}

/* Takes the oldest claim, the row `first`, off its address. */
static void
ledger_drop(nt_ledger *l, uint32_t first)
{
    ledger_row *row = &l->rows[first];
    ledger_count_out(l, row->use, row->bytes);
    (void)nt_map_remove(&l->by_address, row->address);
    if (row->next != NT_NONE) {
        nt_error err;
        l->rows[row->next].last = row->last;
        /* The slot that was emptied a line above is there to be filled again. */
        const nt_status status =
            nt_map_set(&l->by_address, row->address, row->next, &err);
        NT_ASSERT(status == NT_OK);
        (void)status;
    }
    row->use = NT_NONE;
    row->next = l->free_row;
    l->free_row = first;
}

static nt_status
ledger_apply(nt_ledger *l, const nt_ledger_record *r, nt_error *err)
{
    uint32_t first = nt_map_find(&l->by_address, r->address);
    if (r->is_release) {
        if (first == NT_NONE) {
            l->unmatched++;
        } else {
            ledger_drop(l, first);
        }
        return NT_OK;
    }
    const nt_ledger_live live = {r->address, r->bytes, r->device, r->library, r->kind};
    if (first != NT_NONE && l->rows[first].is_seed) {
        /* Nothing is allocated between the two: a failure below loses the seed only. */
        ledger_drop(l, first);
        first = nt_map_find(&l->by_address, r->address);
    }
    return ledger_add(l, &live, false, first, err);
}

/* ---- records --------------------------------------------------------------------- */

nt_status
nt_ledger_push(nt_ledger *ledger, const nt_ledger_record *record, nt_error *err)
{
    nt_ledger *l = ledger;
    const size_t need = l->pending_count + 1;
    NT_TRY(NT_GROW(&l->alloc, l->pending, l->pending_room, need, err));
    NT_TRY(NT_GROW(&l->alloc, l->order, l->order_room, need, err));
    l->pending[l->pending_count++] = (ledger_pending){*record, false};
    return NT_OK;
}

size_t
nt_ledger_waiting(const nt_ledger *ledger)
{
    return ledger->pending_count;
}

nt_status
nt_ledger_settle(nt_ledger *ledger, size_t keep, nt_error *err)
{
    nt_ledger *l = ledger;
    const size_t count = l->pending_count;
    for (size_t i = 0; i < count; i++) {
        l->order[i] = (nt_sort_item){l->pending[i].record.time, (uint32_t)i};
    }
    nt_sort(l->order, count);
    nt_status status = NT_OK;
    for (size_t i = 0; i + keep < count && status == NT_OK; i++) {
        ledger_pending *next = &l->pending[l->order[i].value];
        status = ledger_apply(l, &next->record, err);
        next->is_done = status == NT_OK;
    }
    size_t left = 0;
    for (size_t i = 0; i < count; i++) {
        if (!l->pending[i].is_done) {
            l->pending[left++] = l->pending[i];
        }
    }
    l->pending_count = left;
    return status;
}

nt_status
nt_ledger_seed(nt_ledger *ledger, const nt_ledger_live *seed, nt_error *err)
{
    if (nt_map_find(&ledger->by_address, seed->address) != NT_NONE) {
        return NT_OK;
    }
    return ledger_add(ledger, seed, true, NT_NONE, err);
}

/* ---- what is known --------------------------------------------------------------- */

const nt_ledger_use *
nt_ledger_uses(const nt_ledger *ledger, size_t *count)
{
    *count = ledger->use_count;
    return ledger->uses;
}

size_t
nt_ledger_list(const nt_ledger *ledger, nt_ledger_live *out, size_t capacity)
{
    size_t found = 0;
    for (size_t i = 0; i < ledger->row_count; i++) {
        const ledger_row *row = &ledger->rows[i];
        if (row->use == NT_NONE) {
            continue;
        }
        if (found < capacity) {
            const nt_ledger_use *use = &ledger->uses[row->use];
            out[found] = (nt_ledger_live){row->address, row->bytes, use->device,
                                          use->library, use->kind};
        }
        found++;
    }
    return found;
}

uint64_t
nt_ledger_unmatched(const nt_ledger *ledger)
{
    return ledger->unmatched;
}

bool
nt_ledger_check(const nt_ledger *ledger)
{
    size_t live = 0, counted = 0;
    for (size_t u = 0; u < ledger->use_count; u++) {
        const nt_ledger_use *use = &ledger->uses[u];
        uint64_t bytes = 0;
        size_t rows = 0;
        for (size_t i = 0; i < ledger->row_count; i++) {
            bytes += ledger->rows[i].use == u ? ledger->rows[i].bytes : 0;
            rows += ledger->rows[i].use == u;
        }
        if (bytes != use->bytes || rows != use->live || bytes > use->peak_bytes) {
            return false;
        }
        live += rows;
    }
    /* Every row is in the list of its address. */
    for (size_t i = 0; i < ledger->row_count; i++) {
        const ledger_row *row = &ledger->rows[i];
        if (row->use == NT_NONE ||
            nt_map_find(&ledger->by_address, row->address) != (uint32_t)i) {
            continue;
        }
        for (uint32_t k = (uint32_t)i; k != NT_NONE; k = ledger->rows[k].next) {
            counted++;
        }
    }
    return live == counted;
}
