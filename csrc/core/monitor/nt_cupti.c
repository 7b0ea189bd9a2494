/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/nt_cupti.h"

#include <pthread.h>
#include <string.h>

#include "base/nt_columns.h"
#include "monitor/nt_cupti_abi.h"
#include "monitor/nt_library.h"

/* Bytes of one buffer: some thousand records of up to 128 bytes. */
#define CUPTI_BUFFER ((size_t)128 << 10)
/* Buffers at once; with so many under way further records are dropped and counted. */
#define CUPTI_MOST_BUFFERS 64
/* Records that may wait to be put in order. Buffers arrive roughly in order, so that
 * the older three quarters can be applied when there are more. */
#define CUPTI_MOST_WAITING ((size_t)64 << 10)

typedef struct cupti_functions {
    nt_cupti_version_fn *version;
    nt_cupti_words_fn *words;
    nt_cupti_register_fn *enrol;
    nt_cupti_enable_fn *enable;
    nt_cupti_enable_fn *disable;
    nt_cupti_source_fn *source; /* NULL before CUPTI 24 (CUDA 12.6) */
    nt_cupti_flush_fn *flush;
    nt_cupti_next_fn *next;
    nt_cupti_dropped_fn *dropped;
} cupti_functions;

/* clang-format off */
#define CUPTI(field, name, is_needed) {name, offsetof(cupti_functions, field), is_needed}
/* clang-format on */

static const nt_library_entry cupti_entries[] = {
    CUPTI(version, "cuptiGetVersion", true),
    CUPTI(words, "cuptiGetResultString", true),
    CUPTI(enrol, "cuptiActivityRegisterCallbacks", true),
    CUPTI(enable, "cuptiActivityEnable", true),
    CUPTI(disable, "cuptiActivityDisable", true),
    CUPTI(source, "cuptiActivityEnableAllocationSource", false),
    CUPTI(flush, "cuptiActivityFlushAll", true),
    CUPTI(next, "cuptiActivityGetNextRecord", true),
    CUPTI(dropped, "cuptiActivityGetNumDroppedRecords", true),
};

struct nt_cupti {
    nt_alloc alloc;
    nt_library library;
    cupti_functions call;
    size_t record_size;   /* of this CUPTI's records of memory, by its version */
    size_t other_size;    /* of one that is not so long, or 0; guard: cupti_mutex */
    nt_ledger *ledger;    /* guard: cupti_mutex */
    nt_cupti_state state; /* guard: cupti_mutex */
};

/* A buffer that CUPTI does not use now; its own first bytes lead to the next. */
typedef struct cupti_buffer {
    struct cupti_buffer *next;
} cupti_buffer;

/* CUPTI's callbacks have no argument of the caller's, and may come after the end of the
 * tracker that they were registered for: what they need is static. Nothing of CUPTI but
 * the reading of a buffer is called with the lock held. */
static pthread_mutex_t cupti_mutex = PTHREAD_MUTEX_INITIALIZER;
static nt_cupti *cupti_current;   /* guard: cupti_mutex; NULL: none is on */
static cupti_buffer *cupti_spare; /* guard: cupti_mutex */
static size_t cupti_buffers;      /* all there are; guard: cupti_mutex */

/* ---- buffers, on CUPTI's threads ------------------------------------------------- */

static void
cupti_request(uint8_t **buffer, size_t *size, size_t *most_records)
{
    const nt_alloc alloc = nt_alloc_system();
    cupti_buffer *taken = NULL;
    (void)pthread_mutex_lock(&cupti_mutex);
    if (cupti_spare != NULL) {
        taken = cupti_spare;
        cupti_spare = taken->next;
    } else if (cupti_current != NULL && cupti_buffers < CUPTI_MOST_BUFFERS) {
        taken = nt_allocate(&alloc, CUPTI_BUFFER);
        cupti_buffers += taken != NULL;
    }
    (void)pthread_mutex_unlock(&cupti_mutex);
    *buffer = (uint8_t *)taken;
    *size = taken != NULL ? CUPTI_BUFFER : 0;
    *most_records = 0;
}

/* Takes one record into the ledger; one that there is no memory for counts as dropped.
 */
static void
cupti_take(nt_cupti *c, const nt_cupti_memory *m)
{
    nt_error err;
    nt_ledger_record r = {
        .time = m->timestamp,
        .address = m->address,
        .bytes = m->bytes,
        .device = m->device,
        .library = NT_LEDGER_UNNAMED,
        .kind = (uint32_t)m->memory_kind,
        .is_release = m->operation == NT_CUPTI_OPERATION_RELEASE,
    };
    const char *source = c->state.has_sources && !r.is_release ? m->source : NULL;
    c->state.records++;
    if (nt_ledger_find_library(c->ledger, source, &r.library, &err) != NT_OK ||
        nt_ledger_push(c->ledger, &r, &err) != NT_OK) {
        c->state.dropped++;
    }
}

/* One record of `size` bytes. One of memory that is not as long as its form is not
 * read: the next flush tells. */
static void
cupti_look(nt_cupti *c, const nt_cupti_memory *m, size_t size)
{
    if (m->kind != NT_CUPTI_KIND_MEMORY2) {
        return;
    }
    if (size != c->record_size) {
        c->other_size = size;
        c->state.dropped++;
    } else if (m->operation == NT_CUPTI_OPERATION_ALLOCATION ||
               m->operation == NT_CUPTI_OPERATION_RELEASE) {
        cupti_take(c, m);
    }
}

static void
cupti_read(nt_cupti *c, uint8_t *buffer, size_t valid)
{
    nt_cupti_record *record = NULL;
    bool has_next = c->call.next(buffer, valid, &record) == NT_CUPTI_SUCCESS;
    while (has_next) {
        const uint8_t *begin = record;
        has_next = c->call.next(buffer, valid, &record) == NT_CUPTI_SUCCESS;
        const uint8_t *end = has_next ? (const uint8_t *)record : buffer + valid;
        cupti_look(c, (const nt_cupti_memory *)(const void *)begin,
                   (size_t)(end - begin));
    }
    if (nt_ledger_waiting(c->ledger) > CUPTI_MOST_WAITING) {
        /* What fails here for want of memory waits for the next time. */
        nt_error err;
        const nt_status status =
            nt_ledger_settle(c->ledger, CUPTI_MOST_WAITING / 4, &err);
        (void)status;
    }
}

static void
cupti_complete(nt_cupti_context context, uint32_t stream, uint8_t *buffer, size_t size,
               size_t valid)
{
    (void)context;
    (void)stream;
    (void)size;
    if (buffer == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&cupti_mutex);
    if (cupti_current != NULL && valid > 0) {
        cupti_read(cupti_current, buffer, valid);
    }
    cupti_buffer *spare = (cupti_buffer *)(void *)buffer;
    spare->next = cupti_spare;
    cupti_spare = spare;
    (void)pthread_mutex_unlock(&cupti_mutex);
}

/* Buffers that come back after the last tracker has ended are kept for the next one;
 * those that are here already are given back. With the lock held. */
static void
cupti_release_buffers(void)
{
    const nt_alloc alloc = nt_alloc_system();
    while (cupti_spare != NULL) {
        cupti_buffer *next = cupti_spare->next;
        nt_release(&alloc, cupti_spare, CUPTI_BUFFER);
        cupti_spare = next;
        cupti_buffers--;
    }
}

/* ---- on and off ------------------------------------------------------------------ */

static nt_status
cupti_fail(const nt_cupti *c, nt_status status, const char *what, nt_cupti_status code,
           nt_error *err)
{
    const char *words = NULL;
    (void)c->call.words(code, &words);
    return nt_fail(err, status, NT_NO_OFFSET, "CUPTI's %s: %s (%d)", what,
                   words != NULL ? words : "an unknown error", (int)code);
}

/* Claims the one place there is; NT_REFUSED where another has it. */
static nt_status
cupti_claim(nt_cupti *c, nt_error *err)
{
    (void)pthread_mutex_lock(&cupti_mutex);
    const bool is_free = cupti_current == NULL;
    if (is_free) {
        cupti_current = c;
    }
    (void)pthread_mutex_unlock(&cupti_mutex);
    return is_free ? NT_OK
                   : nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                             "it is on already in this process");
}

static void
cupti_let_go(nt_cupti *c)
{
    (void)pthread_mutex_lock(&cupti_mutex);
    if (cupti_current == c) {
        cupti_current = NULL;
        cupti_release_buffers();
    }
    c->state.is_on = false;
    (void)pthread_mutex_unlock(&cupti_mutex);
}

/* Learns the version and with it the form of the records; NT_REFUSED where that is not
 * known. */
static nt_status
cupti_learn_form(nt_cupti *c, nt_error *err)
{
    const nt_cupti_status code = c->call.version(&c->state.version);
    if (code != NT_CUPTI_SUCCESS) {
        return cupti_fail(c, NT_REFUSED, "cuptiGetVersion", code, err);
    }
    const uint32_t version = c->state.version;
    if (version < NT_CUPTI_VERSION_LEAST || version >= NT_CUPTI_VERSION_BEYOND) {
        return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                       "CUPTI has version %u, and the records of %d (CUDA 11.5) to "
                       "%d (CUDA 13) are known",
                       (unsigned)version, NT_CUPTI_VERSION_LEAST,
                       NT_CUPTI_VERSION_BEYOND - 1);
    }
    c->record_size = version < NT_CUPTI_VERSION_SOURCE
                         ? offsetof(nt_cupti_memory, source)
                         : sizeof(nt_cupti_memory);
    return NT_OK;
}

/* Registers, switches sources on where they can be, and then the activity. */
static nt_status
cupti_enable(nt_cupti *c, nt_error *err)
{
    NT_TRY(cupti_learn_form(c, err));
    nt_cupti_status code = c->call.enrol(cupti_request, cupti_complete);
    if (code != NT_CUPTI_SUCCESS) {
        return cupti_fail(c, NT_REFUSED, "cuptiActivityRegisterCallbacks", code, err);
    }
    /* The function and the source in the record came together. */
    if (c->record_size == sizeof(nt_cupti_memory) && c->call.source != NULL &&
        c->call.source(1) == NT_CUPTI_SUCCESS) {
        c->state.has_sources = true;
    }
    code = c->call.enable(NT_CUPTI_KIND_MEMORY2);
    if (code != NT_CUPTI_SUCCESS) {
        return cupti_fail(c, NT_REFUSED, "cuptiActivityEnable", code, err);
    }
    c->state.is_on = true;
    return NT_OK;
}

nt_status
nt_cupti_start(const nt_alloc *alloc, const char *name, bool only_loaded,
               const nt_ledger_rule *rules, size_t rule_count, nt_cupti **out,
               nt_error *err)
{
    nt_cupti *c;
    NT_TRY(NT_NEW(alloc, c, 1, err));
    *c = (nt_cupti){.alloc = *alloc};
    nt_status status;
    NT_TRY_DONE(nt_library_open(name, only_loaded, &c->library, err));
    NT_TRY_DONE(nt_library_load(&c->library, cupti_entries, NT_LENGTH(cupti_entries),
                                &c->call, err));
    NT_TRY_DONE(nt_ledger_new(alloc, rules, rule_count, &c->ledger, err));
    NT_TRY_DONE(cupti_claim(c, err));
    NT_TRY_DONE(cupti_enable(c, err));
    *out = c;
    c = NULL;
done:
    nt_cupti_free(c, false);
    return status;
}

nt_status
nt_cupti_flush(nt_cupti *cupti, nt_error *err)
{
    nt_cupti *c = cupti;
    if (!c->state.is_on) {
        return NT_OK;
    }
    const nt_cupti_status code = c->call.flush(NT_CUPTI_FLUSH_FORCED);
    if (code != NT_CUPTI_SUCCESS) {
        return cupti_fail(c, NT_IO, "cuptiActivityFlushAll", code, err);
    }
    size_t dropped = 0;
    if (c->call.dropped(NULL, 0, &dropped) != NT_CUPTI_SUCCESS) {
        dropped = 0;
    }
    (void)pthread_mutex_lock(&cupti_mutex);
    c->state.dropped += dropped;
    const size_t other_size = c->other_size;
    const nt_status status = nt_ledger_settle(c->ledger, 0, err);
    (void)pthread_mutex_unlock(&cupti_mutex);
    if (status == NT_OK && other_size != 0) {
        return nt_fail(err, NT_IO, NT_NO_OFFSET,
                       "CUPTI %u made a memory record of %zu bytes; its known records "
                       "have %zu",
                       (unsigned)c->state.version, other_size, c->record_size);
    }
    return status;
}

nt_status
nt_cupti_stop(nt_cupti *cupti, nt_error *err)
{
    nt_cupti *c = cupti;
    if (!c->state.is_on) {
        return NT_OK;
    }
    /* Flushed once more when it is off: what came between is not left in a buffer that
     * the next tool would be handed. */
    const nt_status before = nt_cupti_flush(c, err);
    const nt_cupti_status code = c->call.disable(NT_CUPTI_KIND_MEMORY2);
    nt_error later;
    const nt_status after = nt_cupti_flush(c, &later);
    if (c->state.has_sources) {
        (void)c->call.source(0);
    }
    cupti_let_go(c);
    if (before != NT_OK) {
        return before;
    }
    if (code != NT_CUPTI_SUCCESS) {
        return cupti_fail(c, NT_IO, "cuptiActivityDisable", code, err);
    }
    if (after != NT_OK && err != NULL) {
        *err = later;
    }
    return after;
}

void
nt_cupti_free(nt_cupti *cupti, bool is_child)
{
    if (cupti == NULL) {
        return;
    }
    if (is_child) {
        /* The parent's lock may be held here for ever, by a thread that is not. */
        cupti_current = NULL;
    } else {
        nt_error err;
        (void)nt_cupti_stop(cupti, &err);
        cupti_let_go(cupti);
        /* CUPTI stays loaded: it has threads, and hooks in the driver. */
    }
    nt_ledger_free(cupti->ledger);
    const nt_alloc alloc = cupti->alloc;
    nt_release(&alloc, cupti, sizeof *cupti);
}

nt_ledger *
nt_cupti_lock(nt_cupti *cupti, nt_cupti_state *state)
{
    (void)pthread_mutex_lock(&cupti_mutex);
    *state = cupti->state;
    state->buffers = cupti_buffers * CUPTI_BUFFER;
    return cupti->ledger;
}

void
nt_cupti_unlock(nt_cupti *cupti)
{
    (void)cupti;
    (void)pthread_mutex_unlock(&cupti_mutex);
}
