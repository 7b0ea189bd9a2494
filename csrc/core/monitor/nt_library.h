/* SPDX-License-Identifier: Apache-2.0 */
/* Shared libraries that are loaded at run time and whose functions are looked up by
 * name, so that neither is needed to build or to start. */
#ifndef NT_LIBRARY_H
#define NT_LIBRARY_H

#include "base/nt_base.h"

/* A library that is open; all-zero is none. */
typedef struct nt_library {
    void *handle;
} nt_library;

/* Where a function's pointer is in a struct of them, and whether its absence is
 * failure. */
typedef struct nt_library_entry {
    const char *name;
    size_t offset;
    bool is_needed;
} nt_library_entry;

/* Opens `name`, a path or a soname. With `only_loaded` a library that this process has
 * not loaded is left alone. NT_REFUSED, with the loader's reason, where there is
 * none. */
nt_status
nt_library_open(const char *name, bool only_loaded, nt_library *out,
                nt_error *err) NT_CHECKED;

/* NULL or none is fine. */
void
nt_library_close(nt_library *library);

/* Fills the pointers of the struct at `functions`; one that is absent becomes NULL.
 * NT_REFUSED, with the struct untouched, where a needed one is absent. */
nt_status
nt_library_load(const nt_library *library, const nt_library_entry *entries,
                size_t count, void *functions, nt_error *err) NT_CHECKED;

#endif
