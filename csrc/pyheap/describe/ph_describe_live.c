/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which part of the living heap is looked at for cycles. A module's namespace refers to
 * its functions, and each of them back to the namespace; classes refer to their bases
 * and methods. Left in, these make one component of most of a program.
 */
#include "describe/ph_describe_state.h"

static void
live_collect(const ph_heap *heap, const nt_bitset *dead, nt_bitset *live)
{
    const uint32_t count = ph_heap_count(heap);
    for (uint32_t node = 0; node < count; node++) {
        PyObject *object = ph_heap_object(heap, node);
        const bool left_out = PyType_Check(object) || PyModule_Check(object);
        if (!left_out && !nt_bitset_has(dead, node)) {
            nt_bitset_add(live, node);
        }
    }
    for (uint32_t node = 0; node < count; node++) {
        PyObject *object = ph_heap_object(heap, node);
        if (PyModule_Check(object)) {
            const uint32_t names = ph_heap_find(heap, PyModule_GetDict(object));
            if (names != NT_NONE) {
                nt_bitset_remove(live, names);
            }
        } else if (PyFunction_Check(object)) {
            /* What runs by exec has a namespace without a module. */
            const uint32_t names = ph_heap_find(heap, PyFunction_GET_GLOBALS(object));
            if (names != NT_NONE) {
                nt_bitset_remove(live, names);
            }
        }
    }
}

nt_status
ph_describe_live(const ph_heap *heap, const nt_bitset *dead, nt_bitset *live,
                 uint32_t *cut, nt_error *err)
{
    const uint32_t count = ph_heap_count(heap);
    NT_TRY(nt_bitset_init(live, nt_alloc_system(), count, err));
    live_collect(heap, dead, live);
    uint32_t left = 0;
    for (uint32_t node = 0; node < count; node++) {
        left += !nt_bitset_has(live, node) && !nt_bitset_has(dead, node);
    }
    *cut = left;
    return NT_OK;
}
