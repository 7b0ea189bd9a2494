/* SPDX-License-Identifier: Apache-2.0 */
/* Every device allocation of this process with the library that requested it, by
 * CUPTI's memory activity, loaded at run time.
 *
 * CUPTI serves one tool at a time: beside another one, such as PyTorch's profiler,
 * neither works. So this is switched on only on request, and off before the other
 * begins. Buffers are filled and handed over by CUPTI's and the program's threads,
 * which hold CUPTI's own locks then: nothing here waits for anything but a short lock
 * of its own, and none of it may be called with a lock that those threads could wait
 * for. A caller in Python gives up the GIL for start, flush and stop.
 *
 * One thread at a time starts, flushes, stops and frees; the allocator is used by other
 * threads too, one at a time. */
#ifndef NT_CUPTI_H
#define NT_CUPTI_H

#include "base/nt_base.h"
#include "monitor/nt_ledger.h"

typedef struct nt_cupti nt_cupti;

/* Kinds of memory, as CUPTI numbers them: the ledger's `kind`. */
enum {
    NT_CUPTI_KIND_PINNED = 2, /* of the host */
    NT_CUPTI_KIND_DEVICE = 3,
    NT_CUPTI_KIND_ARRAY = 4, /* of the device, for textures */
    NT_CUPTI_KIND_MANAGED = 5,
    NT_CUPTI_KIND_STATIC = 6, /* variables of kernels' modules, on the device */
};

typedef struct nt_cupti_state {
    uint32_t version; /* CUPTI's own number */
    bool is_on;       /* records are being made */
    bool has_sources; /* this CUPTI names the file that asked */
    uint64_t records; /* of memory, seen so far */
    uint64_t dropped; /* records that CUPTI or we had no room for */
    uint64_t buffers; /* bytes of buffers held at once */
} nt_cupti_state;

/* Switches the activity on, with CUPTI from the file or soname `name`; with
 * `only_loaded` it is taken only if the process has loaded it. NT_REFUSED where it is
 * missing, does not start, has a version whose records are not known, or is on already
 * in this process: one at a time. Do not call it where the CUDA driver can't be loaded:
 * CUPTI of CUDA 13.2 ends the process there. */
nt_status
nt_cupti_start(const nt_alloc *alloc, const char *name, bool only_loaded,
               const nt_ledger_rule *rules, size_t rule_count, nt_cupti **out,
               nt_error *err) NT_CHECKED;

/* All that happened until now is in the ledger when this returns. NT_IO where CUPTI
 * fails, or has made records of another form than its version has. */
nt_status
nt_cupti_flush(nt_cupti *cupti, nt_error *err) NT_CHECKED;

/* The same, and the activity is off. The ledger stays; a second time does nothing. */
nt_status
nt_cupti_stop(nt_cupti *cupti, nt_error *err);

/* Stops and frees; NULL is fine. In a fork's child nothing of CUPTI is called, if
 * `is_child`. */
void
nt_cupti_free(nt_cupti *cupti, bool is_child);

/* The ledger, and the lock that keeps CUPTI's threads from it, until nt_cupti_unlock.
 */
nt_ledger *
nt_cupti_lock(nt_cupti *cupti, nt_cupti_state *state);

void
nt_cupti_unlock(nt_cupti *cupti);

#endif
