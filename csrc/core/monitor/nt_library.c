/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/nt_library.h"

#include <dlfcn.h>
#include <string.h>

nt_status
nt_library_open(const char *name, bool only_loaded, nt_library *out, nt_error *err)
{
    const int mode = RTLD_LAZY | RTLD_LOCAL | (only_loaded ? RTLD_NOLOAD : 0);
    void *handle = dlopen(name, mode);
    if (handle == NULL) {
        /* With RTLD_NOLOAD the loader gives no reason. */
        const char *reason = dlerror();
        return nt_fail(
            err, NT_REFUSED, NT_NO_OFFSET, "%s",
            reason != NULL && !only_loaded ? reason : "this process has not loaded it");
    }
    out->handle = handle;
    return NT_OK;
}

void
nt_library_close(nt_library *library)
{
    if (library != NULL && library->handle != NULL) {
        (void)dlclose(library->handle);
        library->handle = NULL;
    }
}

nt_status
nt_library_load(const nt_library *library, const nt_library_entry *entries,
                size_t count, void *functions, nt_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (entries[i].is_needed && dlsym(library->handle, entries[i].name) == NULL) {
            return nt_fail(err, NT_REFUSED, NT_NO_OFFSET, "it has no function %s",
                           entries[i].name);
        }
    }
    for (size_t i = 0; i < count; i++) {
        /* Copied as bytes: C has no cast from a data pointer to a function pointer. */
        void *symbol = dlsym(library->handle, entries[i].name);
        memcpy((char *)functions + entries[i].offset, &symbol, sizeof symbol);
    }
    return NT_OK;
}
